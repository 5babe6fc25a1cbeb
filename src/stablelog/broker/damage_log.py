"""Damage that requests meet, and files that cannot be read: named in the broker's log once, however often clients repeat the request."""

import logging
from typing import Final

from stablelog.errors import Corrupt, DiskError

log = logging.getLogger(__name__)

MESSAGES_MAX: Final = 1000  # that are remembered; behind them the oldest is logged again when it comes back


class DamageLog:
    """The damage that requests have met since the start of the broker."""

    def __init__(self) -> None:
        self._logged: dict[str, None] = {}  # oldest first

    def note(self, error: Exception) -> None:
        """Log an error of a request, if it is damage, or of the disk, and was not logged yet.

        Args:
            error: what the request is answered with. Its message names the file.
        """
        if not isinstance(error, Corrupt | DiskError) or (message := str(error)) in self._logged:
            return
        if len(self._logged) == MESSAGES_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[message] = None
        log.error("a request cannot be served: %s", message)
