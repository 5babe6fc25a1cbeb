"""Decoder: turns fetched record batches into Arrow batches and drops records that the reader must not see.

No Python object is made for a record. This module does the work for each batch: CRC, codec, and the check whether its
transaction was aborted. Compiled code does the work for each record (`kernels.decode`). The caller passes the aborted
transactions with the bytes, as a Fetch response lists them. The filter is the one of Kafka's consumer: at each batch,
every aborted transaction that begins at or before the batch's last offset is in force, until the ABORT marker of its
producer ends it.
Format: docs/formats.md, "Record batch".  Source: KIP-98.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from stablelog.batch.compression import SIZE_MAX, decompress
from stablelog.batch.header import CODEC_MASK, CONTROL, CRC_START, TRANSACTIONAL, Buffer, Codec
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.errors import Corrupt
from stablelog.spark.columns.arrow_schema import arrow_schema
from stablelog.spark.columns.builder import BYTES_MAX, ROWS_MAX, ColumnBuilder
from stablelog.spark.kernels import decode as k

SCAN_COUNT_MAX = 1024  # Batches whose headers are read by one call.
UNPACKED_SIZE_MAX = 16 << 20  # Bytes of decompressed records held at once; a single batch may be larger.

WRONG = {
    k.BAD_VARINT: "a varint does not end",
    k.BAD_LENGTH: "a record or a field is longer than what it stands in",
    k.BAD_OFFSET: "the offsets of its records do not grow, or pass the batch's last",
    k.BAD_HEADERS: "a record has more headers than bytes, or a header without a name",
    k.BAD_END: "there are bytes after the last field",
    k.BAD_COUNT: "it claims more records than it has bytes",
}

Aborted = Sequence[tuple[int, ...]]  # (producer_id, first_offset), or with the abort marker's offset as third


@dataclass(frozen=True)
class Wanted:
    """The wanted columns, in the order in which they are emitted."""

    columns: tuple[str, ...]

    def schema(self) -> pa.Schema:
        """Their Arrow schema. Raises InvalidConfig for an unknown column."""
        return arrow_schema(self.columns)


class AbortedFilter:
    """Tells which batches of a partition belong to aborted transactions; batches must come in the order of offsets."""

    def __init__(self) -> None:
        # Heap of (first_offset, producer_id) of transactions that have not begun yet.
        self._ahead: list[tuple[int, int]] = []
        self._known: set[tuple[int, int]] = set()  # what is in the heap
        self._aborting: set[int] = set()  # producers whose records are dropped
        self._ended: dict[int, int] = {}  # By producer: the offset of its last ABORT marker.

    def add(self, aborted: Aborted, first_offset: int) -> None:
        """Add aborted transactions that may concern the batches from `first_offset` on.

        A transaction that was added before, or whose marker is before `first_offset`, has no effect.
        """
        for producer_id, begun, *ended in aborted:
            entry = (begun, producer_id)
            if entry in self._known or begun < self._ended.get(producer_id, -1):
                continue
            if ended and ended[0] < first_offset:
                continue
            self._known.add(entry)
            heappush(self._ahead, entry)

    @property
    def is_idle(self) -> bool:
        """Whether no batch can be dropped at present."""
        return not self._ahead and not self._aborting

    def drops(self, producer_id: int, last_offset: int, transactional: bool) -> bool:
        """Whether a batch of records belongs to an aborted transaction."""
        self._reach(last_offset)
        return transactional and producer_id in self._aborting

    def see_abort(self, producer_id: int, offset: int) -> None:
        """Handle an ABORT marker: later batches of the producer belong to another transaction."""
        self._reach(offset)
        self._aborting.discard(producer_id)
        self._ended[producer_id] = offset

    def _reach(self, last_offset: int) -> None:
        while self._ahead and self._ahead[0][0] <= last_offset:
            entry = heappop(self._ahead)
            self._known.discard(entry)
            self._aborting.add(entry[1])


class Decoder:
    """Turns raw batches of one partition into Arrow batches.

    Args:
        topic: name of the topic.
        partition: number of the partition.
        columns: names of the columns, in order; or the Arrow schema that Spark expects, for its nullability.
        isolation: "read_committed" drops what was aborted; "read_uncommitted" drops markers only.
        rows_max: a batch is emitted at so many rows.
        bytes_max: a batch is emitted at so many bytes of keys, values and headers.
        check_crc: whether each batch in the range is checked against its CRC.
        builder: gathers rows together with other decoders; then it says what the columns are, and whoever owns it
            takes what is left in it.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Wanted | Sequence[str] | pa.Schema = (),
        *,
        isolation: str = "read_committed",
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        check_crc: bool = True,
        builder: ColumnBuilder | None = None,
    ) -> None:
        assert isolation in {"read_committed", "read_uncommitted"}, isolation
        if builder is None:
            if isinstance(columns, Wanted):
                columns = columns.columns
            schema = columns if isinstance(columns, pa.Schema) else arrow_schema(columns)
            builder = ColumnBuilder(schema, rows_max, bytes_max)
        self.topic = topic
        self.partition = partition
        self.record_count = 0  # Records so far that were in the range and not aborted.
        self.next_offset = -1  # The offset after the last batch that was read; -1 before the first.
        self._builder = builder
        self._filter = AbortedFilter() if isolation == "read_committed" else None
        self._check_crc = check_crc
        self._table: npt.NDArray[np.int64] = np.zeros((SCAN_COUNT_MAX, k.TABLE_WIDTH), np.int64)

    @property
    def schema(self) -> pa.Schema:
        """The schema of what is emitted."""
        return self._builder.schema

    def feed(
        self, data: Buffer | pa.Buffer, start_offset: int, end_offset: int, aborted: Aborted = ()
    ) -> Iterator[pa.RecordBatch]:
        """Read whole batches; emit Arrow batches as they get full. What is left over stays for the next call.

        Args:
            data: record batches, one after another, by growing offset over all calls. A batch that is cut off at the
                end is left unread: `next_offset` is where to go on.
            start_offset: the first offset that is wanted.
            end_offset: offset after the last one that is wanted.
            aborted: (producer_id, first_offset) of transactions that were aborted, as a Fetch answer lists them. A
                third element, the offset of the ABORT marker, makes entries harmless that end before the data.

        Raises:
            Corrupt: bytes that are no record batch, a CRC that does not hold, records that are not what their batch
                says. Names the partition and the offset. What was emitted before is right.
        """
        source = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        view = memoryview(source)
        state = np.zeros(k.SCAN_WIDTH, np.int64)
        state[k.SCAN_ADDRESS], state[k.SCAN_SIZE] = source.address, source.size
        state[k.SCAN_COUNT_MAX] = len(self._table)
        self._builder.begin(self.topic, self.partition)
        first = True
        status, count = k.DONE, len(self._table)
        while status == k.DONE and count == len(self._table):
            status = k.scan_batches(state, self._table)
            count = int(state[k.SCAN_COUNT])
            table = self._table[:count]
            if first and count:
                if self._filter is not None:
                    self._filter.add(aborted, int(table[0, k.BASE_OFFSET]))
                first = False
            yield from self._decode(view, table, start_offset, end_offset)
            if count and table[-1, k.BASE_OFFSET] + table[-1, k.LAST_DELTA] + 1 >= end_offset:
                return
        if status != k.DONE:
            position = int(state[k.SCAN_POSITION])
            raise Corrupt(
                f"{self._name} behind offset {self.next_offset - 1}: what stands at byte {position} of the data is "
                "no header of a version 2 record batch"
            )

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Emit the remaining rows, if any, as a last batch."""
        return self._builder.take()

    @property
    def _name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def _decode(
        self, view: memoryview, table: npt.NDArray[np.int64], start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Emit the rows of the batches in the table; move `next_offset` behind them."""
        next_offsets = table[:, k.BASE_OFFSET] + table[:, k.LAST_DELTA] + 1
        touched = (next_offsets > start) & (table[:, k.BASE_OFFSET] < end)
        is_control = (table[:, k.ATTRIBUTES] & CONTROL) != 0
        if self._check_crc:
            self._check(view, table[touched])
        kept = touched & ~is_control & (table[:, k.RECORD_COUNT] > 0)
        if self._filter is not None and not self._filter.is_idle:
            kept &= ~self._aborted(view, table)
        wanted = table[kept]
        self._builder.state[k.START], self._builder.state[k.END] = start, end
        if len(wanted):
            for part, _ in self._unpacked(view, wanted):
                yield from self._fill(part)
        if len(table):
            self.next_offset = max(self.next_offset, min(int(next_offsets[-1]), end))

    def _check(self, view: memoryview, table: npt.NDArray[np.int64]) -> None:
        positions = table[:, k.POSITION]
        ends = (positions + table[:, k.SIZE]).tolist()
        for start, end, crc in zip(
            (positions + CRC_START).tolist(), ends, table[:, k.CRC].tolist(), strict=True
        ):
            if crc32c(view[start:end]) != crc:
                offset = int(table[positions + CRC_START == start][0, k.BASE_OFFSET])
                raise Corrupt(f"{self._name}: the CRC of the batch at offset {offset} does not hold")

    def _aborted(self, view: memoryview, table: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which batches of the table are of aborted transactions."""
        assert self._filter is not None
        dropped = np.zeros(len(table), np.bool_)
        columns = (k.BASE_OFFSET, k.LAST_DELTA, k.ATTRIBUTES, k.PRODUCER, k.MARKER, k.POSITION)
        rows = zip(*(table[:, column].tolist() for column in columns), strict=True)
        for n, (base, last_delta, attributes, producer_id, marker, position) in enumerate(rows):
            if producer_id < 0:
                continue
            if attributes & CONTROL:
                if self._is_abort(view, marker, position):
                    self._filter.see_abort(producer_id, base + last_delta)
            elif self._filter.drops(producer_id, base + last_delta, bool(attributes & TRANSACTIONAL)):
                dropped[n] = True
        return dropped

    def _is_abort(self, view: memoryview, marker: int, position: int) -> bool:
        if marker != k.MARKER_COMPRESSED:
            return marker == MarkerType.ABORT
        try:
            found = read_marker(view, position)
        except Corrupt as error:
            raise Corrupt(f"{self._name}: the marker at byte {position} of the data: {error}") from error
        return found is not None and found.type == MarkerType.ABORT

    def _unpacked(
        self, view: memoryview, table: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.int64], list[Any]]]:
        """Yield parts of the table whose records are decompressed, each with the object that keeps them in memory."""
        codecs = table[:, k.ATTRIBUTES] & CODEC_MASK
        if not codecs.any() or (self._builder.depth == k.DEPTH_HEADER and self._is_dense(table)):
            yield table, []
            return
        held: list[Any] = []
        size = first = 0
        for n, codec in enumerate(codecs.tolist()):
            if codec:
                row = table[n]
                unpacked = pa.py_buffer(self._unpack(view, row, codec))
                row[k.RECORDS], row[k.RECORDS_SIZE] = unpacked.address, unpacked.size
                held.append(unpacked)
                size += unpacked.size
            if size >= UNPACKED_SIZE_MAX:
                yield table[first : n + 1], held
                held, size, first = [], 0, n + 1
        if first < len(table):
            yield table[first:], held

    def _is_dense(self, table: npt.NDArray[np.int64]) -> bool:
        return bool((table[:, k.RECORD_COUNT] == table[:, k.LAST_DELTA] + 1).all())

    def _unpack(self, view: memoryview, row: npt.NDArray[np.int64], codec: int) -> bytes:
        position, offset = int(row[k.POSITION]), int(row[k.BASE_OFFSET])
        end = position + int(row[k.SIZE])
        if codec not in set(Codec):
            raise Corrupt(f"{self._name}: the batch at offset {offset} names the unknown codec {codec}")
        try:
            return decompress(Codec(codec), view[end - int(row[k.RECORDS_SIZE]) : end], SIZE_MAX)
        except Corrupt as error:
            raise Corrupt(f"{self._name}: the batch at offset {offset}: {error}") from error

    def _fill(self, table: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Append the records of these batches to the columns; emit them whenever they are full."""
        state = self._builder.state
        batch, address = 0, 0
        state[k.BATCH_COUNT] = len(table)
        state[k.BATCH], state[k.ADDRESS] = batch, address
        before = self._builder.row_count
        while (status := k.decode_batches(state, np.ascontiguousarray(table))) != k.DONE:
            self.record_count += self._builder.row_count - before
            if status == k.NEEDS_ROOM:
                self._builder.grow()
            elif status == k.FULL:
                yield from self._builder.take()
            else:
                offset = int(table[state[k.BATCH], k.BASE_OFFSET])
                raise Corrupt(f"{self._name}: the batch at offset {offset} is not right: {WRONG[status]}")
            before = self._builder.row_count
        self.record_count += self._builder.row_count - before
