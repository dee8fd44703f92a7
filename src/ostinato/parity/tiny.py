"""Verify every registered family on a small folder of its real classes.

What such a folder gives is kept beside the module that writes it, so that whoever has the family
can hold it to the same values on another machine. Invariant: a family without goldens is red.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import cast

from ostinato.backend.importing import load_object
from ostinato.card import ModelSource
from ostinato.errors import InvalidCard
from ostinato.models.registry import Family
from ostinato.parity.gate import GateResult, Rung
from ostinato.parity.ladder import Verification, verify
from ostinato.parity.subject import VerifyOptions


def tiny_goldens(family: Family) -> Path:
    """Name the file of a tiny folder's goldens, beside the module that writes the folder.

    Raises InvalidCard for a family without a writer, ImportError for one that is not there.
    """
    if family.tiny is None:
        raise InvalidCard(f"family {family.name!r} names no tiny folder, so it has no goldens")
    module = import_module(family.tiny.partition(":")[0])
    assert module.__file__ is not None, "a module with a function in it is a file"
    return Path(module.__file__).with_name(f"tiny-{family.name}.goldens.json")


def verify_families(
    families: Sequence[Family],
    root: Path,
    options: VerifyOptions | None = None,
    on_gate: Callable[[str, int, int], None] | None = None,
) -> tuple[Verification, ...]:
    """Make each family's tiny folder below `root` and hold it to its goldens and gates.

    A family without such a folder, or without goldens of it, is red. One that only measures another
    is covered by the gates of that one, if that one is here.
    """
    names = {family.name for family in families if family.measures is None}
    return tuple(
        _verified(family, root / family.name, options or VerifyOptions(), on_gate)
        for family in families
        if family.measures not in names
    )


def _verified(
    family: Family,
    folder: Path,
    options: VerifyOptions,
    on_gate: Callable[[str, int, int], None] | None,
) -> Verification:
    if family.tiny is None:
        return _skipped(family, "it names no tiny folder, so nothing of it was verified")
    try:
        write = cast("Callable[[Path], Path]", load_object(family.tiny))
        opener = cast("Callable[[Path], ModelSource]", load_object(family.open))
        source = opener(write(folder))
        options = replace(options, goldens=tiny_goldens(family))
    except Exception as error:  # another family's gates still speak
        return _skipped(family, f"its tiny folder does not open: {type(error).__name__}: {error}")
    found = verify(source, options, on_gate)
    return replace(found, model_id=f"tiny {family.name}")


def _skipped(family: Family, why: str) -> Verification:
    gate = GateResult(
        name="tiny folder",
        rung=Rung.FILES,
        passed=False,
        measured=0,
        message=f"family {family.name!r}: {why}",
    )
    return Verification(model_id=f"tiny {family.name}", card_digest="", gates=(gate,), threads=1)
