"""Times that a program gives to a reader."""

from datetime import datetime

from stablelog.client.core.arguments import shown, whole
from stablelog.errors import UsageError


def milliseconds(time: datetime | int) -> int:
    """Return a time as milliseconds since 1970.

    Raises:
        TypeError: it is neither a datetime nor a whole number.
        UsageError: the datetime has no time zone, or the number is out of range.
    """
    right = "a datetime with a time zone, or milliseconds since 1970 (int)"
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise UsageError(f"time={shown(time)} is not valid: pass {right}")
        return round(time.timestamp() * 1000)
    number = whole("time", time, right)
    if not 0 <= number < 2**63:
        raise UsageError(f"time={shown(number)} is not valid: pass {right}")
    return number
