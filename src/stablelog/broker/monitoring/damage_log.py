"""Log of damaged and unreadable files: each error is logged once, however often clients retry the request."""

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
    """Logs the damaged data and the disk errors that requests find. A message is logged once, and not again until the
    broker's next start or until `forget_message`.
    """

    def __init__(self) -> None:
        self._logged: dict[str, None] = {}  # oldest first

    def log_once(self, error: Exception, failed: str = "a request cannot be served") -> None:
        """Log an error that reports damaged data or a disk error, unless the same message was logged before.

        Args:
            error: the error of the request. Its message names the file.
            failed: what could not be done, as a clause such as the default. The log line begins with it.
        """
        if not isinstance(error, DamageError | DiskError) or (message := str(error)) in self._logged:
            return
        if len(self._logged) == MESSAGES_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[message] = None
        log.error("%s: %s", failed, message)

    def forget_message(self, message: str) -> None:
        """Forget that a message was logged, because its file was read without an error meanwhile. If the error comes
        back, the message is logged again.
        """
        self._logged.pop(message, None)
