"""Exit codes of the command line. docs/reference/commands.md has a table of them."""

from typing import Final

from stablelog.errors import UnavailableError

FAILED: Final = 2
NO_BROKER: Final = 3
READER_GONE: Final = 141  # 128 + SIGPIPE, as of a program that SIGPIPE ends; Windows has no such signal


class NoBrokerError(UnavailableError):
    """No broker responds at any of the addresses of a command."""
