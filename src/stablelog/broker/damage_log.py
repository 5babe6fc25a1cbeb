"""Log of damage and unreadable files that requests find: each error is logged once, however often clients retry."""

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

    def note(self, error: Exception) -> None:
        """Log the error of a request if it reports damaged data or a disk error, and its message was not logged yet.

        Args:
            error: the error that the request is refused with. Its message names the file.
        """
        if not isinstance(error, DamageError | DiskError) or (message := str(error)) in self._logged:
            return
        if len(self._logged) == MESSAGES_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[message] = None
        log.error("a request cannot be served: %s", message)
