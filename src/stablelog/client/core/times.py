"""Times that a program passes to a reader: a datetime, or milliseconds since 1970."""

from datetime import datetime

from stablelog.client.core.arguments import shown_value, whole_number
from stablelog.errors import UsageError


def milliseconds(time: datetime | int) -> int:
    """Return a time as milliseconds since 1970.

    Raises:
        TypeError: `time` is neither a datetime nor a whole number.
        UsageError: the datetime has no time zone, or the time is before 1970 or out of range.
    """
    right = "a datetime with a time zone, or milliseconds since 1970 (int)"
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise UsageError(f"time={shown_value(time)} is not valid: pass {right}")
        number = round(time.timestamp() * 1000)
    else:
        number = whole_number("time", time, right)
    if not 0 <= number < 2**63:
        # Kafka gives negative times meanings of their own: -1 is the end.
        raise UsageError(
            f"time={shown_value(time)} is not valid: pass {right}, not before 1970; 0 means the beginning"
        )
    return number
