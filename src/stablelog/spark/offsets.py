"""The JSON form of a stream's offsets, and of offsets in options.

It is that of Spark's Kafka connector: `{"orders": {"0": 23, "1": 42}}`, each number the next offset to read. A stream's
offsets also contain the topics' ids under `#topics`, which no topic can be called, so that a topic that was deleted and
created again is not taken for the old one. The offsets of a stream that reads at cuts contain the cut under `#cut`.
Spark compares offsets as strings, so everything is sorted: equal offsets give equal JSON.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stablelog.types import TopicPartition

EARLIEST, LATEST = -2, -1
NUMBER_MAX = 2**63 - 1  # The maximum of an offset, and of a time in ms.
TOPIC_IDS = "#topics"
CUT = "#cut"


@dataclass(frozen=True, slots=True)
class Bound:
    """The beginning or the end of a read.

    Attributes:
        kind: earliest, latest, offsets, timestamps, timestamp or cut.
        by_partition: the offsets (-2 earliest, -1 latest) or the times in ms of the named partitions.
        timestamp_ms: for every partition, if the kind is timestamp.
        commit_sequence: the commit sequence of the cut, if the kind is cut.
    """

    kind: str
    by_partition: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    timestamp_ms: int = 0
    commit_sequence: int = 0

    def places(self) -> set[TopicPartition]:
        """The partitions that are named."""
        return {(topic, index) for topic, indexes in self.by_partition.items() for index in indexes}

    def of(self, place: TopicPartition) -> int | None:
        """The offset or time of a partition; None if it is not named."""
        return self.by_partition.get(place[0], {}).get(place[1])


class CutPoint(NamedTuple):
    """A cut: every commit of the transaction group up to this commit sequence, and no later one."""

    commit_sequence: int
    group: str


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The position of a stream: the next offset to read of each partition.

    Attributes:
        next_offsets: by topic and partition.
        topic_ids: by topic.
        cut: the cut at these offsets; None for a stream that does not read at cuts.
    """

    next_offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    cut: CutPoint | None = None

    def to_json(self) -> dict[str, Any]:
        """Canonical: equal offsets give dictionaries that are written as equal JSON."""
        found: dict[str, Any] = {}
        if self.cut is not None:
            found[CUT] = {"commitSequence": self.cut.commit_sequence, "group": self.cut.group}
        if self.topic_ids:
            found[TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        for (topic, index), offset in sorted(self.next_offsets.items()):
            found.setdefault(topic, {})[str(index)] = offset
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamOffsets":
        """Read what `to_json` gave."""
        cut = value.get(CUT)
        return cls(
            {
                (topic, int(index)): int(offset)
                for topic, indexes in value.items()
                if topic not in (TOPIC_IDS, CUT)
                for index, offset in indexes.items()
            },
            dict(value.get(TOPIC_IDS, {})),
            CutPoint(int(cut["commitSequence"]), cut["group"]) if cut is not None else None,
        )


def parse_offsets(text: str) -> dict[str, dict[int, int]]:
    """Offsets by topic and partition. What a stream reported of its progress is taken too.

    Raises:
        ValueError: it is not that.
    """
    found = _by_partition(text)
    for topic, offsets in found.items():
        for index, offset in offsets.items():
            if offset < EARLIEST:
                raise ValueError(f"{topic}-{index} at {offset}")
    return found


def parse_timestamps(text: str) -> dict[str, dict[int, int]]:
    """Times in ms by topic and partition.

    Raises:
        ValueError: it is not that.
    """
    found = _by_partition(text)
    if any(time < 0 for times in found.values() for time in times.values()):
        raise ValueError("a time before 1970")
    return found


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """The partitions of `{"topic": [0, 1]}`.

    Raises:
        ValueError: it is not that, or there is none.
    """
    value = json.loads(text)
    if not all(isinstance(indexes, list) for indexes in value.values()):
        raise ValueError("partitions are a list of numbers")
    places = tuple(sorted({(topic, _index(index)) for topic, indexes in value.items() for index in indexes}))
    if not places:
        raise ValueError("no partition")
    return places


def parse_indexes(text: str) -> frozenset[int]:
    """The numbers of `0,3,5-7`.

    Raises:
        ValueError: it is not that.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last if dash else first)
        if low > high or high > 1_000_000:
            raise ValueError(part)
        found.update(range(low, high + 1))
    return frozenset(found)


def by_topic(offsets: Iterable[tuple[TopicPartition, int]]) -> dict[str, dict[int, int]]:
    """Offsets of partitions, by topic."""
    found: dict[str, dict[int, int]] = {}
    for (topic, index), offset in sorted(offsets):
        found.setdefault(topic, {})[index] = offset
    return found


def _by_partition(text: str) -> dict[str, dict[int, int]]:
    value = json.loads(text)
    if not isinstance(value, dict) or not value:
        raise ValueError("not a JSON object of topics")
    found = {
        topic: {_index(index): _number(number) for index, number in indexes.items()}
        for topic, indexes in value.items()
        if topic not in (TOPIC_IDS, CUT)
    }
    if not any(found.values()):
        raise ValueError("no partition")
    return found


def _number(value: object) -> int:
    """A number as JSON has it, or as text: nothing is rounded."""
    if type(value) not in (int, str):
        raise ValueError(f"{value} is no whole number")
    number = int(str(value))
    if number > NUMBER_MAX:
        raise ValueError(f"{number} has more than 64 bits")
    return number


def _index(value: object) -> int:
    index = int(str(value))
    if index < 0:
        raise ValueError(f"partition {index}")
    return index
