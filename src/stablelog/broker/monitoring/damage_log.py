"""Log of damage and unreadable files that requests find, or loads of remote segments for them: each error is logged once,
however often clients retry.
"""

import logging
from typing import Final

from stablelog.errors import DamageError, DiskError

log = logging.getLogger(__name__)

MESSAGES_MAX: Final = (
    # The number of log messages that are remembered. Above this number the oldest message is forgotten, and is logged
    # again if the error recurs.
    1000
)


class DamageLog:
    """Logs the damaged data and disk errors that requests have found since the start of the broker, each once."""

    def __init__(self) -> None:
        self._logged: dict[str, None] = {}  # oldest first

    def log_once(self, error: Exception, failed: str = "a request cannot be served") -> None:
        """Log an error if it reports damaged data or a disk error, and its message was not logged yet.

        Args:
            error: the error that the request is refused with. Its message names the file.
            failed: what failed. The line of the log begins with it.
        """
        if not isinstance(error, DamageError | DiskError) or (message := str(error)) in self._logged:
            return
        if len(self._logged) == MESSAGES_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[message] = None
        log.error("%s: %s", failed, message)

    def forget_message(self, message: str) -> None:
        """Log this message again if the error recurs: what it names was read without the error."""
        self._logged.pop(message, None)
