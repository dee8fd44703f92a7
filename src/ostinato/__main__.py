"""`python -m ostinato` is the command line."""

import sys

from ostinato.cli import main

if __name__ == "__main__":
    sys.exit(main())
