"""The cells of the matrix: every way in which Apache Kafka may leave a transaction behind."""

import itertools
from dataclasses import dataclass, fields

VERSIONS = ("4.1.2", "4.2.1")
KILLED, STOPPED = "killed", "stopped"
NOTHING, COMMIT, ABORT = "nothing", "commit", "abort"
TV1, TV2 = "TV1", "TV2"  # by librdkafka, by Java
OPEN, PREPARED_COMMIT, PREPARED_ABORT = "open", "prepared-commit", "prepared-abort"


@dataclass(frozen=True, slots=True)
class Cell:
    """One directory's transaction, and what surrounds it.

    Attributes:
        version: of Apache Kafka.
        end: how Kafka ended.
        before: what became of the same producer's transaction before.
        dialect: of the producer's transactions.
        partition_count: of the topic; the transactions write to all of them.
        compacted: whether the topic is, up to where the last transaction begins.
        deleted: whether DeleteRecords has removed records, of one of the transactions too.
        state: of the last transaction.
    """

    version: str
    end: str
    before: str
    dialect: str
    partition_count: int
    compacted: bool
    deleted: bool
    state: str

    @property
    def topic(self) -> str:
        """A name that says all but version and end: a directory holds a topic for each cell."""
        parts = [self.before, self.dialect, f"{self.partition_count}p"]
        parts += ["compacted"] * self.compacted + ["deleted"] * self.deleted
        return "-".join([*parts, self.state])

    @property
    def transactional_id(self) -> str:
        """The producer's."""
        return f"id-{self.topic}"

    @property
    def group(self) -> str | None:
        """The consumer group whose offsets the transactions commit, too; None if they commit none."""
        return f"group-{self.topic}" if self.partition_count > 1 else None

    @property
    def decision(self) -> str | None:
        """The decision that Kafka left pending; None if the transaction is open."""
        return {PREPARED_COMMIT: COMMIT, PREPARED_ABORT: ABORT}.get(self.state)

    @property
    def kept_markers(self) -> range:
        """The partitions whose marker Kafka had written when it was killed behind its decision."""
        odd = (self.before != NOTHING) + self.compacted
        return range(odd if self.partition_count > 1 else 0)

    def __str__(self) -> str:
        return f"{self.version} {self.end} {self.topic}"


def all_cells(versions=VERSIONS) -> list[Cell]:
    """The full matrix."""
    values = (
        versions,
        (KILLED, STOPPED),
        (NOTHING, COMMIT, ABORT),
        (TV1, TV2),
        (1, 3),
        (False, True),
        (False, True),
        (OPEN, PREPARED_COMMIT, PREPARED_ABORT),
    )
    return [Cell(*row) for row in itertools.product(*values)]


def covering(cells: list[Cell], strength: int) -> list[Cell]:
    """A small part of the cells in which so many values of different dimensions occur together as in all of them.

    Greedy: each step takes the first of the cells with the most new combinations.

    Args:
        cells: all of them.
        strength: 2 for every pair of values (pairwise), 3 for every three.
    """
    found = {cell: _combinations(cell, strength) for cell in cells}
    missing = set().union(*found.values())
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: len(found[cell] & missing))
        chosen.append(best)
        missing -= found[best]
    return chosen


def _combinations(cell: Cell, strength: int) -> set[tuple[tuple[str, object], ...]]:
    values = [(field.name, getattr(cell, field.name)) for field in fields(cell)]
    return set(itertools.combinations(values, strength))
