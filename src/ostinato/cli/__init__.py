"""The command line: parse, call, print."""

from ostinato.cli._main import main as main
