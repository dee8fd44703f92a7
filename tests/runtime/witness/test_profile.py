"""The profiler: nothing is lost, nothing counted twice, percentiles are those of numpy."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ostinato.runtime.scheduler import UnitRecord
from ostinato.runtime.witness import Profile, profile_table
from ostinato.runtime.witness.profile import WINDOW, percentile
from ostinato.tasks import RequestId
from support.feed import Feed, mixed


def unit(
    device_s: float,
    *,
    nodes: tuple[str, ...] = ("denoise",),
    ops: tuple[str, ...] = ("transformer.forward",),
    kind: str = "diffusion_step",
) -> UnitRecord:
    return UnitRecord(
        tick=0,
        device=0,
        model="builtin",
        request_ids=tuple(RequestId(f"r{index}") for index in range(len(nodes))),
        tenants=("default",) * len(nodes),
        nodes=nodes,
        kind=kind,
        ops=ops,
        items=len(nodes),
        start_s=0.0,
        end_s=device_s,
        predicted_s=device_s,
        device_s=device_s,
        load_s=0.0,
    )


def test_rows_add_up_to_all_units() -> None:
    profile = Profile()
    feed = Feed(profile, mixed()).play()
    profile.executed(unit(9.0, nodes=("encode",), ops=("text_encoder.encode",), kind="encoder"))
    rows = profile.rows()
    assert [(row.node, row.count) for row in rows] == [("encode", 1), ("denoise", len(feed.units))]
    assert rows[1].total_s == pytest.approx(sum(unit.device_s for unit in feed.units))
    assert rows[1].mean_s == pytest.approx(rows[1].total_s / len(feed.units))
    assert math.fsum(row.share for row in rows) == pytest.approx(1.0)
    assert rows[0].share == pytest.approx(9.0 / (9.0 + rows[1].total_s))


def test_a_shared_unit_counts_once() -> None:
    profile = Profile()
    profile.executed(unit(1.0, nodes=("a", "b", "a"), ops=("net.embed", "net.head")))
    (row,) = profile.rows()
    assert (row.node, row.op, row.count, row.total_s) == ("a + b", "net.embed + net.head", 1, 1.0)


def test_what_differs_is_apart() -> None:
    profile = Profile()
    profile.executed(unit(1.0))
    profile.executed(unit(1.0, kind="encoder_chunk"))
    profile.executed(unit(1.0, nodes=("decode",)))
    profile.executed(unit(1.0, ops=("vae.decode",)))
    assert [row.count for row in profile.rows()] == [1, 1, 1, 1]


def test_the_percentile_looks_at_the_latest_and_the_mean_at_all() -> None:
    profile = Profile()
    for _ in range(WINDOW):
        profile.executed(unit(9.0))
    for _ in range(WINDOW):
        profile.executed(unit(1.0))
    (row,) = profile.rows()
    assert (row.mean_s, row.p95_s) == (5.0, 1.0)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1), st.sampled_from([0.5, 0.95, 1.0]))
def test_percentile_is_the_nearest_rank(values: list[float], part: float) -> None:
    assert percentile(values, part) == np.percentile(values, 100 * part, method="inverted_cdf")


def test_units_that_took_nothing_have_no_share() -> None:
    profile = Profile()
    profile.executed(unit(0.0))
    assert profile.rows()[0].share == 0.0
    assert Profile().rows() == ()


def test_the_table_shows_every_row() -> None:
    profile = Profile()
    profile.executed(unit(0.0015))
    profile.executed(unit(0.0045, nodes=("decode",), ops=("vae.decode",), kind="vae_tile"))
    out = io.StringIO()
    Console(file=out, width=120).print(profile_table(profile.rows()))
    lines = [line for line in out.getvalue().splitlines() if "builtin" in line]
    cells = [[cell.strip() for cell in line.strip("\u2502").split("\u2502")] for line in lines]
    assert cells == [
        ["builtin", "decode", "vae.decode", "vae_tile", "1", "0.004", "4.50", "4.50", "75.0 %"],
        [
            "builtin",
            "denoise",
            "transformer.forward",
            "diffusion_step",
            "1",
            "0.002",
            "1.50",
            "1.50",
            "25.0 %",
        ],
    ]
