"""The program `stablelog`, also as `python -m stablelog`."""

import sys


def run() -> None:
    """Run the command line. First prevent the import of the test library hypothesis: a library that kio uses imports it
    wherever it is installed, and that takes nearly as long as all other imports of a broker.
    """
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # None: an import raises ImportError
    from stablelog.cli.main import run as run_commands

    run_commands()


if __name__ == "__main__":
    run()
