"""The interfaces through which the searches read stored segments: a list of segments, their indexes and their bytes.

The sources are the local log, the remote tier, the files that Spark reads, and the objects that Spark reads. If a
source does not have the bytes that a search needs in its cache, it raises NotLoadedError. If it has not yet checked the
headers of a log file against their known CRC (its proof), it raises UnprovenError. The error names the work to do; the
caller does it, and repeats the search. The searches themselves open no file and send no request.
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


class FoundBatch(NamedTuple):
    """A batch that a search has found: its position and size in the log file, and its offsets. `last_offset` is
    inclusive.
    """

    position: int
    size: int
    base_offset: int
    last_offset: int

    @property
    def end_position(self) -> int:
        """The end of the batch in the log file, exclusive."""
        return self.position + self.size


class LogBytes(Protocol):
    """The log file of one segment, as the searches read it."""

    @property
    def size(self) -> int:
        """The size of the log file in bytes."""

    def piece(self, position: int, size: int) -> Buffer:
        """Return a piece of the log file: bytes from a position on, which is before the end of the file.

        Args:
            position: the position of a batch.
            size: the number of bytes that the search would like. The result may have more or fewer, but it has a whole
                batch header if the file has one there.

        Raises:
            NotLoadedError: the bytes are not loaded from the object store.
            UnprovenError: the file was not proven since the start of the broker: its batch headers were not compared
                with their known CRC.
        """

    def no_batch_at(self, position: int, error: DamageError | None) -> DamageError:
        """Return the error for bytes at a position where a batch should begin, and that are no batch. The caller raises
        it.

        Args:
            position: the position of the bytes in the log file.
            error: the error that the decoding of these bytes has raised, with the reason; None if the reason is
                unknown.
        """

    def torn_at(self, position: int) -> DamageError | None:
        """Return the error for a torn batch: one that begins at `position` and reaches past the end of the file. The
        caller raises it. Return None if such a batch is no damage, because the file is still being written.
        """


class SegmentReader(Protocol):
    """A segment that can be read. Attributes and methods raise NotLoadedError if their data is not loaded from the
    object store, and UnprovenError if the log file was not proven (its batch headers compared with their known CRC).

    Attributes:
        passed: the part of the log file, from its beginning, that earlier lookups by time have read: its size in bytes,
            and its greatest timestamp or -1. Later lookups skip it.
    """

    passed: tuple[int, int]

    @property
    def base_offset(self) -> int:
        """The first offset of the segment."""

    @property
    def end_offset(self) -> int:
        """The end of the segment's offsets, exclusive."""

    @property
    def size(self) -> int:
        """The size of the log file in bytes."""

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp of the records, or a greater number if it is unknown; -1 if there is no record."""

    @property
    def time_index(self) -> TimeIndex:
        """The time index."""

    def find(self, offset: int) -> FoundBatch | None:
        """Return the first batch that contains or follows an offset; None if there is none."""

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from a position on."""

    def batch_at(self, position: int, size: int) -> Buffer:
        """Return the bytes of the batch with this position and size in the log file."""


class SegmentSource(Protocol[Row]):
    """The segments of a partition in one place, such as its local disk."""

    @property
    def rows(self) -> SegmentRows[Row]:
        """The list of the segments, with the facts (such as their offsets) that are known before a file is read."""

    def readers_from(self, offset: int) -> Iterator[SegmentReader]:
        """Yield the segments that end after an offset, oldest first."""

    def require_txn_indexes(self, rows: Sequence[Row]) -> None:
        """Make sure that the transaction indexes of these segments are loaded into memory, before calls of
        `txn_index_of`.

        Raises:
            NotLoadedError: some of them are not loaded from the object store. The error names all of these.
        """

    def txn_index_of(self, row: Row) -> TransactionIndex:
        """Return the transaction index of a segment. Raises DamageError if it is damaged."""


class IndexedReader(SegmentReader, SegmentRow, Protocol):
    """A segment whose transaction index needs no loading."""

    @property
    def txn_index(self) -> TransactionIndex:
        """The transaction index. Raises DamageError if it is damaged."""


Reader = TypeVar("Reader", bound=IndexedReader)


class ReaderRows(SegmentRows[Reader]):
    """A list of segments that is also their `SegmentSource`: a segment in it is its own reader, and its indexes need no
    loading.
    """

    __slots__ = ()

    @property
    def rows(self) -> Self:
        """This list itself."""
        return self

    def readers_from(self, offset: int) -> Iterator[Reader]:
        """Yield the segments that end after an offset, oldest first."""
        return self.ending_behind(offset)

    def require_txn_indexes(self, rows: Sequence[Reader]) -> None:
        """Do nothing, because these indexes need no loading."""

    def txn_index_of(self, row: Reader) -> TransactionIndex:
        """Return the transaction index of a segment. Raises DamageError if it is damaged."""
        return row.txn_index
