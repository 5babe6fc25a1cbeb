"""Filter pushdown: bounds on topic, partition, offset and time that a read takes over from a query's filters.

Pushdown is off by default. Spark 4.3 keeps the plan of a frame's last filtered query, and uses it for every other query
of the same frame: after `frame.where("partition = 1").count()` a plain `frame.count()` counts partition 1, and both
sides of a union of two filters read what the second asked for. Applying the filter again does not bring back records
that were not planned. So a user may set the option `filterPushdown` only if each query loads a frame of its own. Spark
4.3 refuses a reader that implements `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is set, and by
default it is not. `Hook` acts as this method only where Spark asks for filters. Where Spark checks whether the method
exists, `Hook` looks like the base class's. A test for each Spark version compares this with what Spark does.
"""

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from stablelog.types import TopicPartition

NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


@dataclass(slots=True)
class Narrowing:
    """The range that filters leave of the read. At first it is everything.

    Attributes:
        topics: only these; None for all.
        partitions: only these; None for all.
        start: first offset to read.
        end: exclusive end offset; None for no limit.
        timestamp_min_ms: no record before this time is wanted; earlier records may still be read, so Spark applies
            the filter again. None for no limit.
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
        """Apply one of Spark's filters. Returns whether Spark need not apply it again."""
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

    def keeps(self, place: TopicPartition) -> bool:
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
            # Only the smallest and the largest offset of the list limit the read; Spark selects among those between.
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
            if (
                at_least > 0
            ):  # Records without a timestamp count as before 1970, and brokers find none of them by time.
                self.timestamp_min_ms = max(self.timestamp_min_ms or 0, at_least)
        return False


def _values(kind: str, value: Any, wanted: type) -> list[Any] | None:
    values = value if kind == "In" else [value]
    if kind not in ("EqualTo", "In") or not all(isinstance(one, wanted) for one in values):
        return None
    return list(values)


class Hook:
    """`reader.pushFilters`, as an attribute of one reader that can be pickled with it.

    Args:
        base: the value of `__func__`, so that Spark's check finds the method not implemented.
        take: called with each filter; returns whether Spark need not apply it again.
    """

    def __init__(self, base: Any, take: Callable[[Any], bool]) -> None:
        self.__func__ = base
        self._take = take

    def __call__(self, conditions: list[Any]) -> Iterable[Any]:
        """Take Spark's filters, and return those that Spark has to apply itself."""
        return [condition for condition in conditions if not self._take(condition)]
