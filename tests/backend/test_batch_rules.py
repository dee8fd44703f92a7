"""The probe of batch rules: true on this machine, and not to be fooled by a kernel that is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.backend.batch_rules import (
    NEVER,
    Attention,
    BatchRules,
    Kernels,
    Linear,
    LinearShape,
    Rows,
    StackShapes,
    probe_batch_rules,
    probe_thoroughly,
)

RULES = BatchRules(
    linear_rows=4,
    activation_multiple=16,
    attention=True,
    norms=True,
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def rules() -> BatchRules:
    return probe_batch_rules()


def _linear(width: int, out_features: int, seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, width, generator=generator) / width**0.5
    return partial(F.linear, weight=weight, bias=torch.randn(out_features, generator=generator))


def _samples_agree(run: Callable[[torch.Tensor], torch.Tensor], stack: torch.Tensor) -> bool:
    together = run(stack)
    return all(
        torch.equal(run(stack[i : i + 1].clone()), together[i : i + 1]) for i in range(len(stack))
    )


@settings(deadline=None, max_examples=25)
@given(
    more=st.integers(0, 30),
    batch=st.integers(2, 12),
    width=st.sampled_from((16, 96, 128, 320, 512)),
    out_features=st.integers(2, 100),
    seed=st.integers(0, 2**16),
)
def test_rows_in_stacks_keep_their_bits(
    rules: BatchRules, more: int, batch: int, width: int, out_features: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    stack = torch.randn(batch, rules.linear_rows + more, width, generator=generator)
    assert _samples_agree(_linear(width, out_features, seed), stack)


def test_fewer_rows_do_not(rules: BatchRules) -> None:
    if rules.linear_rows == 1:
        pytest.skip("on this processor any number of rows agrees")
    disagreeing = 0
    for width in (32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048):
        stack = torch.randn(
            40, rules.linear_rows - 1, width, generator=torch.Generator().manual_seed(width)
        )
        disagreeing += not _samples_agree(_linear(width, 64, width), stack)
    assert disagreeing > 0


@settings(deadline=None, max_examples=25)
@given(
    factor=st.integers(1, 12),
    rows=st.integers(1, 60),
    batch=st.integers(2, 9),
    activation=st.sampled_from((F.silu, partial(F.gelu, approximate="tanh"), torch.sin)),
    seed=st.integers(0, 2**16),
)
def test_activations_keep_their_bits(
    rules: BatchRules,
    factor: int,
    rows: int,
    batch: int,
    activation: Callable[[torch.Tensor], torch.Tensor],
    seed: int,
) -> None:
    shape = (batch, rows, factor * rules.activation_multiple)
    stack = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    assert _samples_agree(activation, stack)


@settings(deadline=None, max_examples=20)
@given(
    tokens=st.integers(1, 90),
    heads=st.integers(1, 4),
    head_dim=st.sampled_from((16, 32, 64)),
    batch=st.integers(2, 8),
    seed=st.integers(0, 2**16),
)
def test_verdict_on_attention_and_norms_holds(
    rules: BatchRules, tokens: int, heads: int, head_dim: int, batch: int, seed: int
) -> None:
    shape = (batch, heads, tokens, head_dim)
    stack = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if rules.attention:
        assert _samples_agree(lambda x: F.scaled_dot_product_attention(x, x, x), stack)
    if rules.norms:
        assert _samples_agree(lambda x: F.layer_norm(x, (head_dim,)), stack)
        assert _samples_agree(lambda x: F.rms_norm(x, (head_dim,)), stack)


def test_probe_is_deterministic_and_leaves_random_state(rules: BatchRules) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    assert probe_batch_rules() == rules
    assert torch.equal(torch.random.get_rng_state(), state)


def _tilted(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the kernel with a last bit that depends on how many samples there are."""

    def run(sample: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        result = kernel(sample, *args, **kwargs)
        return result * (1 + 2e-7) if len(sample) == 8 else result

    return run


@pytest.mark.parametrize(
    ("kernel", "verdict"),
    [
        ("attention", "attention"),
        ("layer_norm", "norms"),
        ("rms_norm", "norms"),
        ("group_norm", "norms"),
    ],
)
def test_kernel_that_depends_on_the_batch_is_caught(kernel: str, verdict: str) -> None:
    exact = _row_by_row()
    broken = dataclasses.replace(exact, **{kernel: _tilted(getattr(exact, kernel))})
    found = probe_batch_rules(broken)
    assert not getattr(found, verdict)
    others = {"attention", "norms"} - {verdict}
    assert all(getattr(found, name) for name in others)


def test_kernels_without_a_batch_need_nothing() -> None:
    assert probe_batch_rules(_row_by_row()) == BatchRules(
        linear_rows=1,
        activation_multiple=1,
        attention=True,
        norms=True,
    )


@pytest.mark.parametrize(
    ("bad_rows", "needed"),
    [({1, 2}, 3), ({64}, 65), ({383}, NEVER), ({5000}, NEVER)],
)
def test_least_row_count_is_above_every_bad_one(bad_rows: set[int], needed: int) -> None:
    def linear(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        result = _sum_products(x, weight)
        rows = x.numel() // x.shape[-1]
        return result + 1e-6 if rows in bad_rows else result

    found = probe_batch_rules(dataclasses.replace(_row_by_row(), linear=linear))
    assert found.linear_rows == needed


@pytest.mark.parametrize("vector", [4, 64])
def test_least_multiple_is_the_vector_of_the_kernel(vector: int) -> None:
    def silu(x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten().clone()
        whole = len(flat) // vector * vector
        flat[whole:] += 1  # the tail takes another path
        return flat.view_as(x)

    found = probe_batch_rules(dataclasses.replace(_row_by_row(), silu=silu))
    assert found.activation_multiple == vector


def test_activation_that_never_agrees_has_no_multiple() -> None:
    kernels = dataclasses.replace(_row_by_row(), gelu=lambda x, approximate: x * x.numel())
    assert probe_batch_rules(kernels).activation_multiple == NEVER


def test_sample_alone_starts_where_the_allocator_puts_it() -> None:
    def layer_norm(x: torch.Tensor, normalized_shape: tuple[int, ...]) -> torch.Tensor:
        return x + x.data_ptr() % 64  # a slice of a stack would start between boundaries

    assert probe_batch_rules(dataclasses.replace(_row_by_row(), layer_norm=layer_norm)).norms


def test_output_that_is_no_number_does_not_pass() -> None:
    kernels = dataclasses.replace(_row_by_row(), rms_norm=lambda x, *_, **__: x * torch.nan)
    assert not probe_batch_rules(kernels).norms


def _row_by_row() -> Kernels:
    """Return cheap stand-ins whose result for a sample cannot depend on its neighbours."""

    def same(x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return x

    return Kernels(
        linear=lambda x, weight, bias=None: _sum_products(x, weight),
        silu=same,
        gelu=same,
        sin=same,
        attention=same,
        layer_norm=same,
        rms_norm=same,
        group_norm=same,
        conv1d=same,
        conv2d=same,
        conv3d=same,
    )


def _sum_products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply element by element: no reduction, so no order of one."""
    return x[..., :1] * weight[0, 0]


def test_thorough_probe_sees_what_the_quick_one_sees() -> None:
    kernels = dataclasses.replace(
        _row_by_row(), conv1d=_tilted(_row_by_row().conv1d), sin=lambda x: x + x.numel()
    )
    differing = {(f.op, f.shape) for f in probe_thoroughly(torch.float32, kernels) if not f.equal}
    assert differing >= {
        ("activation", "sine"),
        ("conv1d", "16 to 32 channels, 40"),
        ("conv1d", "64 to 64 channels, 100"),
    }
    products = "attention by products"  # torch's own, whatever the kernels
    assert {op for op, _ in differing} <= {"activation", "conv1d", products}


@pytest.mark.slow
def test_thorough_probe_agrees_with_the_quick_one(rules: BatchRules) -> None:
    findings = probe_thoroughly(torch.float32)
    ops = {finding.op for finding in findings}
    needs = {op: max(f.needs for f in findings if f.op == op) for op in ops}
    assert needs["linear"] == rules.linear_rows
    assert needs["activation"] == rules.activation_multiple
    for op, verdict in (
        ("attention", rules.attention),
        ("layer norm", rules.norms),
    ):
        assert (needs[op] == 1) == verdict
    assert needs["keys in another order"] == NEVER
    for finding in findings:
        assert finding.equal == (finding.largest_difference == 0)
        assert finding.largest_difference < 1e-3


@pytest.mark.parametrize(
    ("change", "stacks"),
    [
        ({}, True),
        ({"linear_rows": 12}, True),
        ({"linear_rows": 13}, False),
        ({"linear_rows": NEVER}, False),
        ({"activation_multiple": 32}, True),
        ({"activation_multiple": 64}, False),
        ({"activation_multiple": NEVER}, False),
        ({"attention": False}, False),
        ({"norms": False}, False),
    ],
)
def test_shapes_stack_only_where_all_verdicts_allow(change: dict[str, bool], stacks: bool) -> None:
    found = dataclasses.replace(RULES, **change)
    assert found.stacks(_shapes(), 2) is stacks


def _shapes(
    rows: int = 12, in_features: int = 64, out_features: int = 96, queries: int = 12
) -> StackShapes:
    return StackShapes(
        linears=(Linear(rows, LinearShape(in_features, out_features, True)),),
        attentions=(Attention(queries, 24, 2, 32),),
        norms=(Rows(rows, in_features),),
        activations=(Rows(rows, out_features),),
        dtype=torch.float32,
    )


def test_linears_that_the_verdict_does_not_speak_of_are_never_stacked() -> None:
    rules = BatchRules(linear_rows=1, activation_multiple=1, attention=True, norms=True)
    assert rules.stacks(_shapes(in_features=48), 2)
    assert not rules.stacks(_shapes(in_features=40), 2)  # rows that do not fill 64 bytes
    assert not rules.stacks(_shapes(out_features=1), 2)  # a product with one column


def test_what_runs_sample_by_sample_needs_no_verdict() -> None:
    rules = dataclasses.replace(RULES, attention=False, norms=False)
    assert rules.stacks(_shapes()._replace(attentions=(), norms=()), 2)


@pytest.mark.parametrize(
    ("kernel", "bad"),
    [
        ("attention", lambda x: x.shape[-2] == 900),
        ("linear", lambda x: x.shape[-1] == 3072),
        ("layer_norm", lambda x: x.shape[-1] == 3072),
        ("rms_norm", lambda x: x.shape[-1] == 3072),
        ("gelu", lambda x: x.shape[-1] == 4096),
    ],
)
def test_shapes_that_the_probe_did_not_see_are_tried(
    kernel: str, bad: Callable[[torch.Tensor], bool]
) -> None:
    """A kernel that depends on the batch from some size on passes the probe, and not its trial."""
    exact = getattr(_row_by_row(), kernel)

    def run(sample: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        result = exact(sample, *args, **kwargs)
        return result * (1 + 2e-7) if bad(sample) and len(sample) == 3 else result

    rules = probe_batch_rules(dataclasses.replace(_row_by_row(), **{kernel: run}))
    assert rules == probe_batch_rules(_row_by_row())
    assert rules.stacks(_shapes(), 3)
    large = _shapes(in_features=3072, out_features=4096, queries=900)
    assert rules.stacks(large, 2)
    assert not rules.stacks(large, 3)


def test_shapes_are_tried_once_for_each_number_of_samples_and_threads() -> None:
    seen: list[int] = []

    def attention(query: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        seen.append(len(query))
        return query

    rules = probe_batch_rules(dataclasses.replace(_row_by_row(), attention=attention))
    assert rules.trials_s == 0.0
    seen.clear()
    assert rules.stacks(_shapes(), 3)
    assert sorted(set(seen)) == [1, 2, 3]
    first, spent = len(seen), rules.trials_s
    assert spent > 0.0
    assert rules.stacks(_shapes(), 3)
    assert (len(seen), rules.trials_s) == (first, spent)
    assert rules.stacks(_shapes(), 4)
    assert max(seen) == 4
    tried = len(seen)
    torch.set_num_threads(2)
    try:
        assert rules.stacks(_shapes(), 4)
    finally:
        torch.set_num_threads(1)
    assert len(seen) > tried


def test_the_probe_attends_on_both_sides_of_the_kernels_blocks() -> None:
    """From 768 queries and 512 keys on torch's kernel takes other blocks."""
    exact = _row_by_row().attention

    def attention(query: torch.Tensor, key: torch.Tensor, *args: object, **more: object) -> object:
        result = exact(query, key, *args, **more)
        large = query.shape[-2] >= 768 and key.shape[-2] > 512
        return result * (1 + 2e-7) if large and len(query) == 5 else result

    kernels = dataclasses.replace(_row_by_row(), attention=attention)
    assert not probe_batch_rules(kernels).attention
