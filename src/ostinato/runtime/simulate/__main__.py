"""Write the traces that ship: `python -m ostinato.runtime.simulate [FOLDER]`."""

import sys
from pathlib import Path

from ostinato.runtime.simulate.stored import write_all

if __name__ == "__main__":
    write_all(*(Path(argument) for argument in sys.argv[1:2]))
