"""What of a query's filters a read can take over: bounds on topic, partition, offset and time.

Off by default, and for a reason. Spark 4.3 keeps the plan of a frame's last filtered query, and takes it for every other
query of the same frame: after `frame.where("partition = 1").count()` a plain `frame.count()` counts partition 1, and
both sides of a union of two filters read what the second asked for. What was not planned cannot be had back by
applying the filter again. So only who loads a frame for each query may ask for it (option `filterPushdown`).

Spark 4.3 refuses a reader that implements `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is set, and
by default it is not. `Hook` is such a method only where Spark asks for filters, and looks like the base class's
where Spark asks whether there is one; a test per Spark version holds this to what Spark does.
"""

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from stablelog.spark.offsets import Place

NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


@dataclass(slots=True)
class Narrowing:
    """What is left to be read of what the options name. Nothing is narrowed at first.

    Attributes:
        topics: only these; None for all.
        partitions: only these; None for all.
        start: no offset before it.
        end: no offset from it on; None for no such bound.
        timestamp_min_ms: no record before this time; records of an earlier time may still be among those that are
            read, so Spark looks again. None for no such bound.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start: int = 0
    end: int | None = None
    timestamp_min_ms: int | None = None
    _takers: dict[str, Callable[[str, Any], bool]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._takers = {
            "topic": self._take_topic,
            "partition": self._take_partition,
            "offset": self._take_offset,
            "timestamp": self._take_timestamp,
        }

    def take(self, condition: Any) -> bool:
        """Narrow by one of Spark's filters. Returns whether Spark need not look at it again."""
        kind = type(condition).__name__
        column = ".".join(getattr(condition, "attribute", ()))
        if kind == "IsNotNull":
            return column in NEVER_NULL
        taker = self._takers.get(column)
        value = getattr(condition, "value", None)
        if kind == "In":
            value = list(value) if value is not None else []
            if not value or any(one is None for one in value):
                return False
        if taker is None or value is None or isinstance(value, bool):
            return False
        return taker("EqualTo" if kind == "EqualNullSafe" else kind, value)

    def keeps(self, place: Place) -> bool:
        """Whether anything is left of a partition."""
        topic, index = place
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or index in self.partitions
        )

    def cut(self, start: int, end: int) -> tuple[int, int]:
        """What is left of a range of offsets; empty if its end is not past its start."""
        return max(start, self.start), end if self.end is None else min(end, self.end)

    def _take_topic(self, kind: str, value: Any) -> bool:
        if kind == "StringStartsWith":
            return False
        wanted = _values(kind, value, str)
        if wanted is None:
            return False
        self.topics = frozenset(wanted) if self.topics is None else self.topics & frozenset(wanted)
        return True

    def _take_partition(self, kind: str, value: Any) -> bool:
        wanted = _values(kind, value, int)
        if wanted is None:
            return False
        self.partitions = (
            frozenset(wanted) if self.partitions is None else self.partitions & frozenset(wanted)
        )
        return True

    def _take_offset(self, kind: str, value: Any) -> bool:
        if kind == "In":
            # The ends of the list bound what is read; which of the offsets between are wanted is Spark's to say.
            self._bound(min(value), max(value) + 1)
            return False
        if not isinstance(value, int):
            return False
        if kind == "EqualTo":
            self._bound(value, value + 1)
        elif kind == "GreaterThan":
            self._bound(value + 1, None)
        elif kind == "GreaterThanOrEqual":
            self._bound(value, None)
        elif kind == "LessThan":
            self._bound(0, value)
        elif kind == "LessThanOrEqual":
            self._bound(0, value + 1)
        else:
            return False
        return True

    def _bound(self, start: int, end: int | None) -> None:
        self.start = max(self.start, start)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)

    def _take_timestamp(self, kind: str, value: Any) -> bool:
        if kind == "In":
            value = min(value)
        if kind in ("EqualTo", "In", "GreaterThan", "GreaterThanOrEqual") and isinstance(value, dt.datetime):
            # Rounded down: the log has milliseconds, a literal may have microseconds.
            at_least = (value.astimezone(dt.UTC) - _EPOCH) // _MILLISECOND
            if at_least > 0:  # records without a time have one before 1970, and brokers find none of these
                self.timestamp_min_ms = max(self.timestamp_min_ms or 0, at_least)
        return False


def _values(kind: str, value: Any, wanted: type) -> list[Any] | None:
    values = value if kind == "In" else [value]
    if kind not in ("EqualTo", "In") or not all(isinstance(one, wanted) for one in values):
        return None
    return list(values)


class Hook:
    """`reader.pushFilters`, as an attribute of one reader. Pickles with it.

    Args:
        base: what `__func__` is to be, so that Spark's look finds nothing implemented.
        take: called with each filter; returns whether Spark need not look at it again.
    """

    def __init__(self, base: Any, take: Callable[[Any], bool]) -> None:
        self.__func__ = base
        self._take = take

    def __call__(self, conditions: list[Any]) -> Iterable[Any]:
        """Spark hands its filters over, and gets back those that it has to apply itself."""
        return [condition for condition in conditions if not self._take(condition)]
