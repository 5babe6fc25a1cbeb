"""Times that a program gives to a reader."""

from datetime import datetime

from stablelog.errors import UsageError


def milliseconds(time: datetime | int) -> int:
    """Return a time as milliseconds since 1970.

    Raises:
        UsageError: it is neither a datetime with a time zone nor a number from 0 on.
    """
    if isinstance(time, datetime) and time.tzinfo is not None:
        return round(time.timestamp() * 1000)
    if type(time) is int and 0 <= time < 2**63:
        return time
    raise UsageError(
        f"{time!r} is no time: pass a datetime with a time zone, or milliseconds since 1970 as a whole number"
    )
