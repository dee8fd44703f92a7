"""Make the goldens of the tiny folders again: `.venv/bin/python tests/parity/make_tiny_goldens.py`.

They lie in the package, beside the modules that write those folders, where `ostinato verify
--all-tiny` finds them. Those of the model that ships lie in its folder, and are made by
`ostinato verify builtin --write-goldens src/ostinato/models/builtin/weights/goldens.json`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

from ostinato.backend.importing import load_object
from ostinato.cli import main
from ostinato.models.registry import FAMILIES
from ostinato.parity.tiny import tiny_goldens


def make() -> None:
    """Write one file a family that has a tiny folder."""
    for family in FAMILIES:
        if family.tiny is None:
            continue
        write = cast("Callable[[Path], Path]", load_object(family.tiny))
        with tempfile.TemporaryDirectory() as root:
            folder = write(Path(root) / family.name)
            path = tiny_goldens(family)
            code = main(["verify", str(folder), "--write-goldens", str(path), "--quiet"])
            assert code == 0, f"the tiny folder of {family.name} has no goldens"


if __name__ == "__main__":
    make()
