"""The JSON format of a stream's offsets, and of offsets in options.

The format is that of Spark's Kafka connector: `{"orders": {"0": 23, "1": 42}}`. Each number is the next offset to read.
A stream's offsets also contain the topic ids, so that a topic that was deleted and created again is not mistaken for
the old one. Their key is `#topics`, which is not a valid topic name. The offsets of a stream with the option cut=true,
whose micro-batches consist of whole transactions, also contain the number of the last commit before them (`StreamCut`),
under `#cut`. Spark compares offsets as strings, so everything is sorted: equal offsets give equal JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stablelog.json_text import parse_json
from stablelog.types import TopicPartition

EARLIEST, LATEST = -2, -1
NUMBER_MAX = 2**63 - 1  # The maximum of an offset, and of a time in ms.
TOPIC_IDS = "#topics"
CUT = "#cut"


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of a read: its beginning or its end, as an option gives it.

    Attributes:
        kind: earliest, latest, offsets, timestamps, timestamp or cut.
        by_partition: the offset (-2 earliest, -1 latest) or the time in ms of each partition that the option names.
        timestamp_ms: the time for every partition, if the kind is timestamp.
        commit_sequence: if the kind is cut (the position after a commit, in all partitions), the number of this commit.
    """

    kind: str
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int = 0
    commit_sequence: int = 0


class StreamCut(NamedTuple):
    """A cut of a transaction group (topics whose commits have one order): a point in this order. It includes all
    commits up to a commit sequence, the number of a commit in the group, and no later one.
    """

    commit_sequence: int
    group: str


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The position of a stream: the next offset to read of each partition.

    Attributes:
        next_offsets: the next offset to read, by topic and partition.
        topic_ids: the id of each topic, by name.
        cut: the cut that consists of these offsets (the position after a commit, in all partitions); None for a stream
            without the option cut=true.
    """

    next_offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    cut: StreamCut | None = None

    @property
    def stream_cut(self) -> StreamCut:
        """The cut that consists of these offsets: the position after a commit, in all partitions. Use this only for a
        stream with the option cut=true, whose offsets always have a cut.
        """
        assert self.cut is not None
        return self.cut

    def replaced_topics(self, topic_ids: Mapping[str, str]) -> set[str]:
        """Return the topics whose id has changed, because they were deleted and created again."""
        return {topic for topic, now in topic_ids.items() if self.topic_ids.get(topic, now) != now}

    def to_json(self) -> dict[str, Any]:
        """Return the position as a dictionary for JSON, sorted so that equal positions result in equal JSON text."""
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
        """Return the position of a stream that `to_json` has converted to the dictionary `value`."""
        cut = value.get(CUT)
        return cls(
            {
                (topic, int(index)): int(offset)
                for topic, indexes in value.items()
                if topic not in (TOPIC_IDS, CUT)
                for index, offset in indexes.items()
            },
            dict(value.get(TOPIC_IDS, {})),
            StreamCut(int(cut["commitSequence"]), cut["group"]) if cut is not None else None,
        )


def parse_numbers(text: str, least: int) -> dict[TopicPartition, int]:
    """Parse `{"topic": {"0": 23}}`, and return the number of each partition, here `{("topic", 0): 23}`. Each number
    must be at least `least`. The text may also be the offsets that a stream reports, which have further keys: their
    topic ids and their cut are ignored.

    Raises:
        ValueError: the text has another form, or names no partition.
    """
    value = parse_json(text, pairs_hook=_without_repeats)
    if not isinstance(value, dict) or not value:
        raise ValueError("the value is not a JSON object whose keys are topics")
    found = {
        (topic, _partition_number(index)): whole_number(number, least)
        for topic, numbers in value.items()
        if topic not in (TOPIC_IDS, CUT)
        for index, number in numbers.items()
    }
    if not found:
        raise ValueError("the JSON text names no partition: name one or more")
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dictionary. Raises ValueError if the object has a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def _partition_number(text: str) -> int:
    """Return the partition number in a key of a JSON object. Only its plain decimal form is accepted."""
    number = whole_number(text)
    if text != str(number):
        raise ValueError(f"the partition {text!r} is not written as a plain number: write {number}")
    return number


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions, and return them as pairs of topic and number: `(("topic", 0), ("topic", 1))` for the text
    `{"topic": [0, 1]}`.

    Raises:
        ValueError: the text has another form, or names no partition.
    """
    value = parse_json(text)
    if not all(isinstance(indexes, list) for indexes in value.values()):
        raise ValueError("the partitions of a topic are not a list of numbers")
    places = {(topic, whole_number(index)) for topic, indexes in value.items() for index in indexes}
    if not places:
        raise ValueError("the JSON text names no partition: name one or more")
    return tuple(sorted(places))


def parse_indexes(text: str) -> frozenset[int]:
    """Parse numbers and ranges of numbers, and return all the numbers: 0, 3, 5, 6 and 7 for the text `0,3,5-7`.

    Raises:
        ValueError: the text has another form.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last if dash else first)
        if low > high or high > 1_000_000:
            raise ValueError(part)
        found.update(range(low, high + 1))
    return frozenset(found)


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    """Group the offsets of partitions by topic. Return, for each topic, its offsets by the number of the partition."""
    found: dict[str, dict[int, int]] = {}
    for (topic, index), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[index] = offset
    return found


def whole_number(value: object, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Return a whole number from JSON or text. A fraction is an error and is not rounded.

    Args:
        value: the number, or its text.
        least: the least valid number.
        most: the greatest valid number.

    Raises:
        ValueError: the value is not a whole number, or is out of range.
    """
    if type(value) not in (int, str):
        raise ValueError(f"{value} is not a whole number")
    number = int(str(value))
    if number < least:
        raise ValueError(f"{number} is less than {least}, the least valid number")
    if number > most:
        raise ValueError(f"the number {number} is greater than {most}, the greatest valid number")
    return number
