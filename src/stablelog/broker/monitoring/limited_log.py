"""Limited log: for log lines that any client can cause. Their number in a period is limited, so that no client can fill
the disk with them.
"""

import logging
from collections.abc import Callable
from typing import Final

# The number of lines that one limited log writes in each period.
LINES_MAX: Final = 100
PERIOD_MS: Final = 10_000
LINE_SIZE_MAX: Final = 2000  # The number of characters of a message.
SHOWN_SIZE_MAX: Final = 200


class LimitedLog:
    """Writes at most LINES_MAX log lines in each period of PERIOD_MS.

    The first line of a later period says how many lines were left out. A message is cut after LINE_SIZE_MAX characters,
    and control characters are escaped.

    Args:
        logger: where the lines are written.
        level: the level of the lines.
        what: what one line reports, in the plural, such as "denied requests".
        now_ms: returns the broker's time.
    """

    def __init__(self, logger: logging.Logger, level: int, what: str, now_ms: Callable[[], int]) -> None:
        self._logger = logger
        self._level = level
        self._what = what
        self._now_ms = now_ms
        self._begin_ms = now_ms()
        self._count = 0

    def write(self, message: str, *values: object) -> None:
        """Write a line, as `logging.Logger.log` does; or only count it, if the period has too many lines already."""
        now_ms = self._now_ms()
        if not 0 <= now_ms - self._begin_ms < PERIOD_MS:
            if self._count > LINES_MAX:
                self._logger.log(self._level, "%d %s were not logged", self._count - LINES_MAX, self._what)
            self._begin_ms, self._count = now_ms, 0
        self._count += 1
        if self._count <= LINES_MAX:
            self._logger.log(self._level, "%s", _one_line(message % values if values else message))


def _one_line(text: str) -> str:
    cut = text if len(text) <= LINE_SIZE_MAX else f"{text[:LINE_SIZE_MAX]}..."
    return (
        cut if cut.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)
    )


def quote_for_log(text: str) -> str:
    """Return text that a client has sent, for a log line: in quotes, with control characters escaped, and shortened if
    it is long.
    """
    cut = text if len(text) <= SHOWN_SIZE_MAX else f"{text[:SHOWN_SIZE_MAX]}..."
    return ascii(cut)
