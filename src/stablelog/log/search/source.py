"""What a place of stored segments tells the searches: the rows of its segments, their indexes and their bytes.

The places are the local log, the remote tier, the files that Spark reads, and the objects that Spark reads. A place
need not have everything at hand. It then raises NotLoadedError or UnprovenError, which name the work to do. The caller
does this work, and repeats the search. The searches themselves open no file, and send no request.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from stablelog.batch.header import BatchHeader
from stablelog.env.disk import Buffer
from stablelog.errors import DamageError
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import TransactionIndex
from stablelog.log.search.rows import Row, SegmentRow, SegmentRows

OFFSET_MAX: Final = 2**63 - 1


class Found(NamedTuple):
    """The position, the size and the offsets of a batch. `last_offset` is inclusive."""

    position: int
    size: int
    base_offset: int
    last_offset: int

    @property
    def end_position(self) -> int:
        """The end of the batch in the log file, exclusive."""
        return self.position + self.size


class LogBytes(Protocol):
    """The log file of one segment."""

    @property
    def size(self) -> int:
        """The size of the log file in bytes."""

    def piece(self, position: int, size: int) -> Buffer:
        """Return bytes of the log file from a position on, which is before the end of the file.

        Args:
            position: the position of a batch.
            size: the number of bytes that the search wants. The result may have more or fewer, but has at least those of
                a batch header if the file has them.

        Raises:
            NotLoadedError: the bytes are not loaded.
            UnprovenError: the file has not been proven since the start of the broker.
        """

    def no_batch_at(self, position: int, error: DamageError | None) -> DamageError:
        """Return the error for bytes that are no batch. `error` says why; None if that is unknown."""

    def torn_at(self, position: int) -> DamageError | None:
        """Return the error for a batch that does not end within the file. Return None if the log ends before it, because
        the file is being written.
        """


class SegmentReader(Protocol):
    """A segment that can be read. Its attributes and methods raise NotLoadedError and UnprovenError if what they need is
    not at hand.

    Attributes:
        passed: (size, greatest timestamp or -1) of the log file's first part, whose headers lookups by time have read.
    """

    passed: tuple[int, int]

    @property
    def base_offset(self) -> int:
        """The first offset of the segment."""

    @property
    def end_offset(self) -> int:
        """The offset after the last one of the segment."""

    @property
    def size(self) -> int:
        """The size of the log file in bytes."""

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp of the records, or a greater one if it is unknown; -1 if there is no record."""

    @property
    def time_index(self) -> TimeIndex:
        """The time index."""

    def find(self, offset: int) -> Found | None:
        """Return the first batch whose last offset is at least `offset`; None if there is none."""

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from a position on."""

    def batch_at(self, position: int, size: int) -> Buffer:
        """Return the bytes of a batch."""


class SegmentSource(Protocol[Row]):
    """The segments of a partition in one place."""

    @property
    def rows(self) -> SegmentRows[Row]:
        """What is known of the segments before one of their files is read."""

    def readers_from(self, offset: int) -> Iterator[SegmentReader]:
        """Yield the segments that end after an offset, oldest first."""

    def require_txn_indexes(self, rows: Sequence[Row]) -> None:
        """Make the transaction indexes of these segments ready for `txn_index_of`, all at once.

        Raises:
            NotLoadedError: some of them are not loaded.
        """

    def txn_index_of(self, row: Row) -> TransactionIndex:
        """Return the transaction index of a segment. Raises DamageError."""


class IndexedReader(SegmentReader, SegmentRow, Protocol):
    """A segment that has its transaction index at hand."""

    @property
    def txn_index(self) -> TransactionIndex:
        """The transaction index. Raises DamageError."""


Reader = TypeVar("Reader", bound=IndexedReader)


class ReaderRows(SegmentRows[Reader]):
    """The segments of a place whose rows are readers themselves."""

    __slots__ = ()

    @property
    def rows(self) -> Self:
        """The segments themselves."""
        return self

    def readers_from(self, offset: int) -> Iterator[Reader]:
        """Yield the segments that end after an offset, oldest first."""
        return self.ending_behind(offset)

    def require_txn_indexes(self, rows: Sequence[Reader]) -> None:
        """Do nothing: the indexes are in memory or in files."""

    def txn_index_of(self, row: Reader) -> TransactionIndex:
        """Return the transaction index of a segment. Raises DamageError."""
        return row.txn_index
