"""Whether what readers saw agrees with what writers were told. Pure: a history in, findings out."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Fate(Enum):
    """What a writer knows of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the answer was lost: all of it or nothing


@dataclass(slots=True)
class History:
    """What happened.

    Attributes:
        transactions: the values of each transaction, with its fate. Every value is written once.
        reads: what a read-committed reader saw of each partition: (offset, value) in the order of reading.
        watermarks: (high watermark, last stable offset) of each partition, in the order of looking.
    """

    transactions: list[tuple[Fate, tuple[bytes, ...]]] = field(default_factory=list)
    reads: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    watermarks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


def check(history: History) -> list[str]:
    """Everything that must not be."""
    seen = Counter(value for read in history.reads.values() for _, value in read)
    return [
        *_check_values(history.transactions, seen),
        *_check_order(history.reads),
        *_check_watermarks(history.watermarks),
    ]


def _check_values(
    transactions: Sequence[tuple[Fate, tuple[bytes, ...]]], seen: Mapping[bytes, int]
) -> Iterable[str]:
    known = set()
    for fate, values in transactions:
        known |= set(values)
        counts = [seen.get(value, 0) for value in values]
        if fate is Fate.COMMITTED:
            yield from (f"lost: {value!r}" for value, count in zip(values, counts, strict=True) if count == 0)
        elif fate is Fate.ABORTED:
            yield from (
                f"aborted yet read: {value!r}" for value, count in zip(values, counts, strict=True) if count
            )
        elif len(set(counts)) > 1:
            yield f"torn: {values!r} were read {counts} times"
        yield from (
            f"duplicated: {value!r} was read {count} times"
            for value, count in zip(values, counts, strict=True)
            if count > 1
        )
    yield from (f"read, and never written: {value!r}" for value in seen if value not in known)


def _check_order(reads: Mapping[int, Sequence[tuple[int, bytes]]]) -> Iterable[str]:
    for partition, read in reads.items():
        for (before, _), (after, value) in itertools.pairwise(read):
            if after <= before:
                yield f"partition {partition}: offset {after} ({value!r}) came after {before}"


def _check_watermarks(watermarks: Mapping[int, Sequence[tuple[int, int]]]) -> Iterable[str]:
    for partition, samples in watermarks.items():
        for before, after in itertools.pairwise(samples):
            if after[0] < before[0] or after[1] < before[1]:
                yield f"partition {partition}: watermarks moved back, from {before} to {after}"
