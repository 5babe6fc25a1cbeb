"""Every error that stablelog raises on purpose.

    StablelogError
    ├── Refused              a request that cannot be done as asked; nothing changed; carries Kafka's error code
    │   └── OffsetOutOfRange the asked offset is not in the log; the reader must reset
    ├── Corrupt              bytes that are not what was written: stop, and look at the named file
    ├── Unavailable          the disk or the broker failed underneath; nothing was acknowledged
    └── InvalidConfig        a setting that is unknown or outside its valid range

A class exists only where a caller acts differently. Everything else that a Kafka client can be told is a
`Refused` with the error code that says it. Any other exception is a bug: the broker logs it and closes the
connection it came from.
"""

from kio.schema.errors import ErrorCode


class StablelogError(Exception):
    """The root: never raised itself."""


class Refused(StablelogError):
    """A request that cannot be done as asked. State is as it was before.

    Args:
        code: what a Kafka client is told.
        message: what was wrong and what to do, for people.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class OffsetOutOfRange(Refused):
    """The asked offset lies before the log's start or past its end."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.offset_out_of_range, message)


class Corrupt(StablelogError):
    """Bytes that are not what was written. Names the file and the position, or the offset."""


class Unavailable(StablelogError):
    """The disk or the broker failed underneath. What was asked was not acknowledged."""


class InvalidConfig(StablelogError):
    """A setting that is unknown, or whose value lies outside the valid range; says which and what is valid."""
