"""The proof: every record that a reader got, beside the row of the source file."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from demo.flights import Flight

DOOMED = b'"doomed":true'


class Place(NamedTuple):
    """The place of a record in the log."""

    partition: int
    offset: int


@dataclass(slots=True)
class Reading:
    """The records that one reader got.

    Attributes:
        places: where each record was, in the order of the reads.
        rows: the number of the row of the file of each, in the same order.
        aborted_count: records of aborted transactions.
        changed_count: other records that differ from the row in any byte.
    """

    places: list[Place] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    aborted_count: int = 0
    changed_count: int = 0

    def last_offsets(self) -> dict[int, int]:
        """Return the last offset of each partition from which a record came."""
        found: dict[int, int] = {}
        for place in self.places:
            found[place.partition] = max(place.offset, found.get(place.partition, -1))
        return found


class Source:
    """The rows of the file as they are written, so that a record can be compared byte by byte."""

    def __init__(self, flights: Sequence[Flight]) -> None:
        self._values = {flight.row: flight.encode(doomed=False) for flight in flights}

    def check(self, reading: Reading, place: Place, value: bytes) -> None:
        """Add a record to a reading, and compare it with its row."""
        row = int(value[value.index(b":") + 1 : value.index(b",")])
        if DOOMED in value:
            reading.aborted_count += 1
        elif self._values.get(row) != value:
            reading.changed_count += 1
        else:
            reading.places.append(place)
            reading.rows.append(row)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reading beside the rows that the reader has to find.

    Attributes:
        read_count: records that equal their row.
        lost_count: rows that were not found.
        duplicated_count: records of rows that were found before.
        aborted_count: records of aborted transactions.
        changed_count: records that differ from their row, or that the reader must not find.
    """

    read_count: int
    lost_count: int
    duplicated_count: int
    aborted_count: int
    changed_count: int

    @property
    def is_good(self) -> bool:
        """Whether the reader has found every row once, and nothing else."""
        return not (self.lost_count or self.duplicated_count or self.aborted_count or self.changed_count)

    def __str__(self) -> str:
        changed = f", {self.changed_count:,} unlike the source" if self.changed_count else ""
        return (
            f"{self.lost_count:,} lost, {self.duplicated_count:,} duplicated, "
            f"{self.aborted_count:,} aborted ones shown{changed}"
        )


def prove(expected: Collection[int], reading: Reading) -> Verdict:
    """Compare a reading with the rows that the reader has to find, each of them once."""
    found = Counter(reading.rows)
    wanted = set(expected)
    return Verdict(
        read_count=found.total(),
        lost_count=len(wanted - found.keys()),
        duplicated_count=found.total() - len(found),
        aborted_count=reading.aborted_count,
        changed_count=reading.changed_count + len(found.keys() - wanted),
    )
