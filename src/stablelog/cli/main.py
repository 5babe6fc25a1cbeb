"""The entry point of the command line. It runs the commands of the core without typer, and all others with it.

An error is one line on stderr. docs/reference/commands.md has a table of the exit codes.
"""

import contextlib
import os
import sys
from typing import NoReturn

from stablelog import __version__
from stablelog.cli.output import Output, OutputError

COMPLETION = "_STABLELOG_COMPLETE"  # a shell that completes a command sets this variable


def run() -> None:
    """Run the command line: the entry point of the program."""
    Output.install()
    try:
        if sys.argv[1:2] == ["--version"] and COMPLETION not in os.environ:
            sys.stdout.write(f"stablelog {__version__}\n")
            sys.stdout.flush()
        else:
            _run_and_flush(sys.argv[1:])
    except OutputError as failed:
        from stablelog.cli.exit_codes import FAILED, READER_GONE

        Output.discard()
        if failed.is_closed:
            sys.exit(READER_GONE)  # exit without a message, like a program that SIGPIPE ends
        _end(failed, FAILED)


def _run_and_flush(words: list[str]) -> None:
    from stablelog.cli.exit_codes import FAILED, NO_BROKER, NoBrokerError
    from stablelog.errors import StablelogError

    try:
        _run_words(words)
    except StablelogError as error:
        _end(error, NO_BROKER if isinstance(error, NoBrokerError) else FAILED)
    finally:
        sys.stdout.flush()


def _run_words(words: list[str]) -> None:
    from stablelog.cli.core_commands import CORE_COMMANDS
    from stablelog.errors import UsageError

    if words and words[0] in CORE_COMMANDS and COMPLETION not in os.environ:
        CORE_COMMANDS[words[0]].run_words(words[1:])
        return
    try:
        from stablelog.cli.commands import app
    except ModuleNotFoundError as missing:
        if missing.name != "typer":
            raise
        command = f"stablelog {words[0]}" if words else "stablelog"
        known = ", ".join(f"stablelog {name}" for name in CORE_COMMANDS)
        raise UsageError(
            f"{command} needs the extra cli: pip install 'stablelog[cli]'. Without it there are {known} and "
            "stablelog --version"
        ) from missing
    app(words)


def _end(error: Exception, exit_code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # stderr may be closed, as standard output is
        sys.stderr.write(f"stablelog: {error}\n")
    sys.exit(exit_code)


if __name__ == "__main__":
    run()
