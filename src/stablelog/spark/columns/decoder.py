"""Decoder: converts fetched record batches into Arrow batches, without the records that the reader must not get.

The decoder makes no Python object for a record. This module works on whole batches: CRC, decompression, and whether the
batch's transaction was aborted (`batch.aborted`). Compiled code works on the records (`kernels.decode`). Format:
docs/reference/formats.md, "Record batch".
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stablelog.batch.aborted import Aborted, AbortedFilter
from stablelog.batch.compression import SIZE_MAX, decompress
from stablelog.batch.header import CODEC_MASK, CONTROL, CRC_START, TRANSACTIONAL, Buffer, Codec
from stablelog.crc32c import crc32c
from stablelog.errors import DamageError
from stablelog.spark.columns.builder import ColumnBuilder
from stablelog.spark.kernels import decode as k

SCAN_COUNT_MAX = 1024  # Maximum of batch headers that one call of a kernel reads.
# Maximum bytes of decompressed records in memory, unless a single batch has more.
UNPACKED_SIZE_MAX = 16 << 20

WRONG = {
    k.BAD_VARINT: "a varint does not end",
    k.BAD_LENGTH: "a record is longer than its batch, or a field longer than its record",
    k.BAD_OFFSET: "the offsets of its records do not increase, or exceed the batch's last offset",
    k.BAD_HEADERS: "a record claims more headers than it has bytes for, or has a header without a name",
    k.BAD_END: "there are bytes after the last field",
    k.BAD_COUNT: "it claims more records than it has bytes for",
}


class Decoder:
    """Converts record batches of one partition into Arrow batches.

    Args:
        topic: name of the topic.
        partition: number of the partition.
        builder: collects the rows, also those of other decoders. The caller takes the remaining rows after the last
            batch.
        isolation: "read_committed" drops aborted records; "read_uncommitted" drops markers only.
        check_crc: whether each batch in the range is checked against its CRC.
        skipped: called with a message for each batch whose records cannot be decoded although its CRC is right, because
            its producer wrote it wrongly. The rest of the batch is then left out. If `skipped` is None, such a batch is
            an error.

    Attributes:
        next_offset: the offset after the last batch that was read; -1 before the first.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        builder: ColumnBuilder,
        *,
        isolation: str = "read_committed",
        check_crc: bool = True,
        skipped: Callable[[str], None] | None = None,
    ) -> None:
        assert isolation in {"read_committed", "read_uncommitted"}, isolation
        self.next_offset = -1
        self._topic_partition = topic, partition
        self._name = f"{topic}-{partition}"
        self._builder = builder
        self._committed = isolation == "read_committed"
        self._filter = AbortedFilter()
        self._check_crc = check_crc
        self._skipped = skipped
        self._table: npt.NDArray[np.int64] = np.zeros((SCAN_COUNT_MAX, k.TABLE_WIDTH), np.int64)

    def feed(
        self, data: Buffer | pa.Buffer, start_offset: int, end_offset: int, aborted: Aborted = ()
    ) -> Iterator[pa.RecordBatch]:
        """Decode whole record batches, and yield the Arrow batches that are full. The other rows stay in the builder.

        Args:
            data: record batches in the order of their offsets, which must also increase from call to call. An
                incomplete batch at the end is not decoded: `next_offset` is its offset.
            start_offset: the first offset to return.
            end_offset: the offset after the last one to return.
            aborted: (producer_id, first_offset) of aborted transactions, as a Fetch response lists them. An optional
                third element is the offset of the abort marker; if the marker is before `data`, the entry has no
                effect.

        Raises:
            DamageError: some bytes are not a record batch, a CRC is wrong, or records cannot be decoded and `skipped` is
                None.
                The message names the partition and the offset. The batches that were yielded before are correct.
        """
        source = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        view = memoryview(source)
        state = np.zeros(k.SCAN_WIDTH, np.int64)
        state[k.SCAN_ADDRESS], state[k.SCAN_SIZE] = source.address, source.size
        state[k.SCAN_COUNT_MAX] = len(self._table)
        self._builder.begin(*self._topic_partition)
        if self._committed:
            self._filter.add(aborted, max(start_offset, self.next_offset))
        status, count = k.DONE, len(self._table)
        while status == k.DONE and count == len(self._table):
            status = k.scan_batches(state, self._table)
            count = int(state[k.SCAN_COUNT])
            table = self._table[:count]
            yield from self._decode(view, table, start_offset, end_offset)
            if count and table[-1, k.BASE_OFFSET] + table[-1, k.LAST_DELTA] + 1 >= end_offset:
                return
        if status != k.DONE:
            position = int(state[k.SCAN_POSITION])
            raise DamageError(
                f"{self._name} after offset {self.next_offset - 1}: the bytes at position {position} of the data are "
                "not the header of a version 2 record batch"
            )

    def _decode(
        self, view: memoryview, table: npt.NDArray[np.int64], start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Decode the records of some batches into the builder, and set `next_offset` to the offset after the last
        batch, but at most to `end`.

        Args:
            view: the bytes that contain the batches.
            table: the headers of the batches: each row describes one batch.
            start: the first offset to return. Records before it are left out.
            end: the offset after the last one to return.

        Yields:
            The columns of the builder as an Arrow batch, each time when they are full.
        """
        next_offsets = table[:, k.BASE_OFFSET] + table[:, k.LAST_DELTA] + 1
        touched = (next_offsets > start) & (table[:, k.BASE_OFFSET] < end)
        is_control = (table[:, k.ATTRIBUTES] & CONTROL) != 0
        if self._check_crc:
            self._check(view, table[touched])
        kept = touched & ~is_control & (table[:, k.RECORD_COUNT] > 0)
        if not self._filter.is_idle:
            kept &= ~self._aborted(view, table)
        wanted = table[kept]
        self._builder.state[k.START], self._builder.state[k.END] = start, end
        for part in self._unpacked(view, wanted):
            yield from self._fill(view, part)
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
                raise DamageError(f"{self._name}: the CRC of the batch at offset {offset} is wrong")

    def _aborted(self, view: memoryview, table: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return an array with an element for each batch in `table`: True if the batch belongs to an aborted
        transaction.
        """
        dropped = np.zeros(len(table), np.bool_)
        columns = (k.BASE_OFFSET, k.LAST_DELTA, k.ATTRIBUTES, k.PRODUCER, k.POSITION)
        rows = zip(*(table[:, column].tolist() for column in columns), strict=True)
        for n, (base, last_delta, attributes, producer_id, position) in enumerate(rows):
            if attributes & CONTROL:
                self._pass_control(view, position, producer_id, base + last_delta)
            elif attributes & TRANSACTIONAL:
                dropped[n] = self._filter.drops_batch(producer_id, base + last_delta)
        return dropped

    def _pass_control(self, view: memoryview, position: int, producer_id: int, last_offset: int) -> None:
        try:
            self._filter.process_control(view, position, producer_id, last_offset)
        except DamageError as error:
            raise DamageError(
                f"{self._name}: the marker at byte {position} of the data is damaged: {error}"
            ) from error

    def _unpacked(self, view: memoryview, table: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """Decompress the records of the batches in `table`, in which each row describes one batch.

        Yields:
            Parts of the table, from the first row to the last. The rows of a part say where the decompressed records of
            their batches are in memory. These records are valid only until the caller requests the next part, whose
            records overwrite them.
        """
        codecs = table[:, k.ATTRIBUTES] & CODEC_MASK
        is_dense = (table[:, k.RECORD_COUNT] == table[:, k.LAST_DELTA] + 1).all()
        if not codecs.any() or (self._builder.depth == k.DEPTH_HEADER and is_dense):
            yield table
            return
        held: list[pa.Buffer] = []
        first = size = 0
        for n, codec in enumerate(codecs.tolist()):
            if codec:
                row = table[n]
                try:
                    unpacked = pa.py_buffer(self._unpack(view, row, codec))
                except DamageError as error:
                    self._skip(view, row, 0, 0, str(error))
                    continue
                row[k.RECORDS], row[k.RECORDS_SIZE] = unpacked.address, unpacked.size
                held.append(unpacked)
                size += unpacked.size
            if n + 1 == len(table) or size >= UNPACKED_SIZE_MAX:
                yield table[first : n + 1]
                held, first, size = [], n + 1, 0

    def _unpack(self, view: memoryview, row: npt.NDArray[np.int64], codec: int) -> bytes:
        position, offset = int(row[k.POSITION]), int(row[k.BASE_OFFSET])
        end = position + int(row[k.SIZE])
        if codec not in set(Codec):
            raise DamageError(
                f"{self._name}: the batch at offset {offset} has the unknown compression codec {codec}"
            )
        try:
            return decompress(Codec(codec), view[end - int(row[k.RECORDS_SIZE]) : end], SIZE_MAX)
        except DamageError as error:
            raise DamageError(
                f"{self._name}: the batch at offset {offset} cannot be decompressed: {error}"
            ) from error

    def _fill(self, view: memoryview, table: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Append the records of the batches in `table` (a row for each batch) to the columns. Yield the columns as an
        Arrow batch whenever they are full.
        """
        state = self._builder.state
        state[k.BATCH_COUNT] = len(table)
        state[k.BATCH] = state[k.ADDRESS] = 0
        is_cut = False
        while is_cut or state[k.BATCH] < len(table):
            before = state.copy()
            status = k.decode_batches(state, np.ascontiguousarray(table))
            if status == k.DONE and is_cut:
                # The columns hold a part of the record that cannot be decoded, after their rows. New columns do not.
                yield from self._builder.take_batches()
                state[k.BATCH_COUNT], is_cut = len(table), False
            elif status == k.NEEDS_ROOM:
                self._builder.grow()
            elif status == k.FULL:
                yield from self._builder.take_batches()
            elif status != k.DONE:
                bad = int(state[k.BATCH])
                row = table[bad]
                why = f"{self._name}: the batch at offset {row[k.BASE_OFFSET]} is not valid: {WRONG[status]}"
                self._skip(view, row, int(state[k.RECORD]), int(state[k.ADDRESS] - row[k.RECORDS]), why)
                # Decode again what this call of the kernel has decoded, now without the rest of the batch.
                state[:] = before
                state[k.BATCH_COUNT], is_cut = bad + 1, True

    def _skip(
        self, view: memoryview, row: npt.NDArray[np.int64], record_count: int, size: int, why: str
    ) -> None:
        """Leave out those records of a batch that cannot be decoded, and report their loss by the decoder's function
        `skipped`.

        Args:
            view: the data that is decoded.
            row: the row of the table that describes the batch. It is changed so that only the records that can be
                decoded are left.
            record_count: the number of records that can be decoded.
            size: the size in bytes of the records that can be decoded.
            why: what is wrong with the batch.

        Raises:
            DamageError: the CRC of the batch is wrong, or the decoder has no function `skipped`, so that no record may
                be left out.
        """
        position = int(row[k.POSITION])
        if crc32c(view[position + CRC_START : position + int(row[k.SIZE])]) != row[k.CRC]:
            raise DamageError(f"{why}; the CRC of the batch is wrong, too")
        if self._skipped is None:
            raise DamageError(
                f"{why}. The CRC of the batch is right, so the producer wrote the batch in this form. Set "
                "failOnDataLoss to false to continue without the records that cannot be decoded"
            )
        left_out = int(row[k.RECORD_COUNT]) - record_count
        self._skipped(
            f"{why}. Its CRC is right, so its producer wrote it so. {left_out} of its {row[k.RECORD_COUNT]} records are "
            f"skipped, up to offset {row[k.BASE_OFFSET] + row[k.LAST_DELTA]}"
        )
        row[k.RECORD_COUNT], row[k.RECORDS_SIZE] = record_count, size
