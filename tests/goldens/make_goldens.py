"""Make the goldens of the tiny folders again: `.venv/bin/python tests/goldens/make_goldens.py`.

Those of the model that ships lie in its folder, and are made by
`ostinato verify builtin --write-goldens src/ostinato/models/builtin/weights/goldens.json`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ostinato.cli import main
from ostinato.models.builtin.tiny import write_tiny_builtin
from ostinato.models.wan.tiny import write_tiny_wan

HERE = Path(__file__).parent


def make() -> None:
    """Write one file a family beside this script."""
    for name, write in (("tiny-builtin", write_tiny_builtin), ("tiny-wan", write_tiny_wan)):
        with tempfile.TemporaryDirectory() as root:
            folder = write(Path(root) / name)
            goldens = HERE / f"{name}.json"
            code = main(["verify", str(folder), "--write-goldens", str(goldens), "--quiet"])
            assert code == 0, f"{name} has no goldens"


if __name__ == "__main__":
    make()
