"""Division of downloaded bytes into whole record batches, and the proof of the batches' headers: the check against a
CRC in the manifest, the list of the partition's segments.

The ranges of a download end anywhere in a batch. A batch that is in two ranges is copied; all others are decoded where
they are.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stablelog.batch.header import HEADER, LENGTH_AND_OFFSET_SIZE, Buffer
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError
from stablelog.log.segments.proof import LENGTH
from stablelog.spark.kernels import decode as k
from stablelog.spark.objects.download import downloaded, ranges_of
from stablelog.spark.planning import ObjectExtent
from stablelog.types import ObjectRange, RangeProof

Check = Callable[[memoryview, npt.NDArray[np.int64]], None]


def batches_of(
    store: ObjectStore, extents: Iterable[ObjectExtent]
) -> Iterator[tuple[ObjectRange, pa.Buffer]]:
    """Download parts of log files, and divide them into whole batches. If the manifest (the list of the partition's
    segments) has CRCs of a range, the batches of the range are yielded only after their headers were checked against
    these.

    Yields:
        A pair: the range that was downloaded, and bytes of it, which are one or more whole batches.

    Args:
        store: the object store.
        extents: the parts: each is a byte range of a log file.

    Raises:
        ObjectMissingError: an object does not exist any more.
        StoreError: the store does not answer, or rejects a request.
        DamageError: the bytes are no batches, or other ones than the manifest describes. The message names the object.
    """
    ranges = [one for extent in extents for one in ranges_of(extent)]
    whole, reached, left = WholeBatches(0, 0, 0), -1, 0
    held: deque[pa.Buffer] = deque()
    for number, content in downloaded(store, [one.place for one in ranges]):
        part, start, end = ranges[number]
        if number != reached:
            crc = part.proof.crc_before if part.proof is not None else None
            whole = WholeBatches(part.size, start, end, crc or 0, checks_offsets=part.proof is None)
            reached, left = number, part.size
        left -= len(content)
        try:
            for batches in whole.batches_in(content):
                held.append(batches)
                if part.proof is None:
                    yield part, held.popleft()
            if not left:
                _check_end(whole, part.proof)
        except DamageError as error:
            raise DamageError(f"{store.url}/{part.key}, from byte {part.start}: {error}") from error
        del content
        while held and not left:
            yield part, held.popleft()


def _check_end(whole: "WholeBatches", proof: RangeProof | None) -> None:
    if not whole.is_complete:
        raise DamageError("the part that was read ends in the middle of a batch")
    if proof is not None and whole.header_crc != proof.crc:
        raise DamageError(
            "the batch headers in the object do not match the checksum in the manifest (the list of segments)"
        )


class WholeBatches:
    """The record batches of a part of a log file, which is downloaded in several ranges.

    Args:
        size: the size of the part in bytes.
        start: the offset at which the part begins.
        end: the offset at which it ends.
        header_crc: CRC-32C over the headers of all batches before the part; 0 if it is unknown.
        checks_offsets: whether the offsets of the batches must increase, and stay within the part. This check is
            superfluous if the batch headers are compared with a CRC.
        check: is called with the bytes of whole batches, and a table with a row for each (`kernels.decode`); it may
            raise DamageError.

    Attributes:
        header_crc: the CRC of the argument, continued over the headers of all batches that were yielded.
    """

    def __init__(
        self,
        size: int,
        start: int,
        end: int,
        header_crc: int = 0,
        *,
        checks_offsets: bool = True,
        check: Check | None = None,
    ) -> None:
        self.header_crc = header_crc
        self._next_offset = start
        self._end = end
        self._checks_offsets = checks_offsets
        self._check = check
        self._left = size  # How many bytes of the part are still to come.
        self._rest = bytearray()  # The first bytes of a batch whose end was not downloaded yet.

    def batches_in(self, content: Buffer) -> Iterator[pa.Buffer]:
        """Yield the whole batches that end in `content`, the next bytes of the part.

        Raises:
            DamageError: some bytes are not the header of a batch, a batch ends after the part, or its offsets are not
                those of its place.
        """
        view = memoryview(content)
        while self._rest and view:
            piece = view[: self._missing_size()]
            self._rest += piece
            self._left -= len(piece)
            view = view[len(piece) :]
            if not self._missing_size():
                batch, self._rest = pa.py_buffer(self._rest), bytearray()  # The bytes are not copied.
                self._scan_headers(batch)
                yield batch
                del batch
        if view:
            source = pa.py_buffer(view)
            size = self._scan_headers(source)
            if size:
                yield source.slice(0, size)
            self._left -= len(view)
            self._rest = bytearray(view[size:])
        if self._rest:
            self._missing_size()  # A batch that is too large is refused before it is gathered.

    @property
    def is_complete(self) -> bool:
        """Whether the bytes that `batches_in` has got so far end with a whole batch."""
        return not self._rest

    def _missing_size(self) -> int:
        """Return how many more bytes of the incomplete batch in `_rest` have to be downloaded: those up to the end of
        its header if the header is incomplete, and otherwise those up to the end of the batch, whose size is in the
        header. Raises DamageError if the batch is larger than the rest of the part.
        """
        if len(self._rest) < HEADER.size:
            return HEADER.size - len(self._rest)
        size = LENGTH_AND_OFFSET_SIZE + int(LENGTH.unpack_from(self._rest)[0])
        left = len(self._rest) + self._left
        if not HEADER.size <= size <= left:
            raise DamageError(
                f"a batch has {size} bytes, but only {left} bytes are left in the part that was read"
            )
        return size - len(self._rest)

    def _scan_headers(self, source: pa.Buffer) -> int:
        """Read the headers of the whole batches in a buffer. Return the end of the last one."""
        end, data = 0, np.frombuffer(source, np.uint8)
        for table in k.batch_tables(data):
            if self._checks_offsets:
                self._check_offsets(table)
            self.header_crc = k.crc_of_headers(data, table, self.header_crc)
            if self._check is not None:
                self._check(memoryview(source), table)
            end = int(table[-1, k.POSITION] + table[-1, k.SIZE])
        return end

    def _check_offsets(self, table: npt.NDArray[np.int64]) -> None:
        """Check that the offsets of the batches in a table increase, and stay within the part: the CRC of a batch does
        not cover its base offset. Raises DamageError.
        """
        base_offsets = table[:, k.BASE_OFFSET]
        ends = base_offsets + table[:, k.LAST_DELTA] + 1
        begins = np.concatenate(([self._next_offset], ends[:-1]))
        wrong = np.flatnonzero((base_offsets < begins) | (ends > self._end))
        if wrong.size:
            place = int(wrong[0])
            raise DamageError(
                f"a batch has the offsets {int(base_offsets[place])} to {int(ends[place]) - 1}, which belong before or after "
                f"its place: only offsets from {int(begins[place])} to before {self._end} can be at its place"
            )
        self._next_offset = int(ends[-1])
