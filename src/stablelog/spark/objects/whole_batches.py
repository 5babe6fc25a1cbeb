"""Division of downloaded bytes into whole record batches, and the proof of the batches' headers.

The ranges of a download end anywhere in a batch. A batch that is in two ranges is copied; all others are decoded where
they are.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from stablelog.batch.header import HEADER, LENGTH_AND_OFFSET_SIZE, Buffer
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError
from stablelog.log.segments.proof import LENGTH, LENGTH_AT
from stablelog.spark.kernels import decode as k
from stablelog.spark.objects.download import downloaded
from stablelog.types import ObjectRange, RangeProof

Check = Callable[[memoryview, npt.NDArray[np.int64]], None]
SCAN_COUNT_MAX = 1024  # Maximum of batch headers that one call of a kernel reads.


def batches_of(
    store: ObjectStore, parts: Sequence[ObjectRange], offsets: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, pa.Buffer]]:
    """Download parts of log files, and divide them into whole batches. If the manifest has CRCs of a part, its batches
    are yielded only after their headers were proven.

    Yields:
        A pair: the index of the part in `parts`, and bytes of it, which are one or more whole batches.

    Args:
        store: the object store.
        parts: the parts. Each begins and ends between two batches.
        offsets: for each part, the offsets at which it begins and ends.

    Raises:
        ObjectMissingError: an object does not exist any more.
        StoreError: the store does not answer, or rejects a request.
        DamageError: the bytes are no batches, or other ones than the manifest describes. The message names the object.
    """
    whole, reached, size = WholeBatches(None, 0, 0, 0), -1, 0
    held: deque[pa.Buffer] = deque()
    for number, content in downloaded(store, parts):
        part = parts[number]
        if number != reached:
            crc = None if part.proof is None else part.proof.crc_before
            whole, reached, size = WholeBatches(crc, part.size, *offsets[number]), number, 0
        size += len(content)
        try:
            for batches in whole.batches_in(content):
                held.append(batches)
                if part.proof is None:
                    yield number, held.popleft()
            if size == part.size:
                _check_end(whole, part.proof)
        except DamageError as error:
            raise DamageError(f"{store.url}/{part.key}, from byte {part.start}: {error}") from error
        del content
        while held and size == part.size:
            yield number, held.popleft()


def _check_end(whole: "WholeBatches", proof: RangeProof | None) -> None:
    if not whole.is_complete:
        raise DamageError("the part that was read ends in the middle of a batch")
    if proof is not None and whole.header_crc != proof.crc:
        raise DamageError("the headers of its batches are not those that the manifest describes")


class WholeBatches:
    """The record batches of a part of a log file, which is downloaded in several ranges.

    Args:
        header_crc: CRC-32C over the headers of all batches before the part; None if it is unknown. Then the offsets of
            the batches are checked: they must increase, and stay within the part.
        size: bytes of the part.
        start: the offset at which the part begins.
        end: the offset at which it ends.
        check: is called with the bytes of whole batches, and a table of them (`kernels.decode`); it may raise
            DamageError.

    Attributes:
        header_crc: CRC-32C over the headers of all batches before the part and of all batches that were yielded; None
            if it is unknown.
    """

    def __init__(
        self, header_crc: int | None, size: int, start: int, end: int, check: Check | None = None
    ) -> None:
        self.header_crc = header_crc
        self._next_offset = start
        self._end = end
        self._check = check
        self._size = size  # How many bytes of the part are still to come.
        # A batch whose end was not downloaded yet, or its header, and how many bytes of it are there.
        self._rest, self._filled = bytearray(), 0
        self._table = np.zeros((SCAN_COUNT_MAX, k.TABLE_WIDTH), np.int64)

    def batches_in(self, content: Buffer) -> Iterator[pa.Buffer]:
        """Yield the whole batches that end in the next bytes of the part.

        Raises:
            DamageError: some bytes are not the header of a batch, or a batch ends after the part.
        """
        view = memoryview(content)
        at = self._complete_rest(view) if self._rest else 0
        if self._rest and self._missing_size:
            self._size -= len(view)
            return
        if self._rest:
            batch, self._rest = pa.py_buffer(self._rest), bytearray()  # The bytes are not copied.
            self._scan_headers(batch)
            yield batch
            del batch
        if at < len(view):
            source = pa.py_buffer(view[at:])
            size = self._scan_headers(source)
            if size:
                yield source.slice(0, size)
            self._keep_begin(view[at + size :], self._size - at - size)
        self._size -= len(view)

    @property
    def is_complete(self) -> bool:
        """Whether the bytes up to now end with a whole batch."""
        return not self._rest

    def _keep_begin(self, view: memoryview, left: int) -> None:
        """Keep the first bytes of a batch whose rest is not downloaded yet. The part has `left` bytes from its begin
        on.
        """
        self._filled = len(view)
        self._rest = bytearray(self._needed_size(view, left)) if len(view) else bytearray()
        self._rest[: len(view)] = view

    def _needed_size(self, view: Buffer, left: int) -> int:
        """Return the size of the batch that begins with these bytes; the size of a header if the bytes do not tell it
        yet. Raises DamageError.
        """
        if len(view) < HEADER.size:
            return HEADER.size
        length: int = LENGTH.unpack_from(view, LENGTH_AT)[0]
        size = LENGTH_AND_OFFSET_SIZE + length
        if not HEADER.size <= size <= left:
            raise DamageError(
                f"a batch has {size} bytes, but only {left} bytes are left in the part that was read"
            )
        return size

    @property
    def _missing_size(self) -> int:
        """How many bytes of the batch that is in two ranges are missing."""
        return len(self._rest) - self._filled

    def _complete_rest(self, view: memoryview) -> int:
        """Complete the batch whose first bytes were in an earlier range, with the first bytes of `view`. Return how
        many bytes of `view` were used.
        """
        at = self._fill_rest(view)
        if not self._missing_size and len(self._rest) == HEADER.size:  # Now the size of the batch is known.
            left = self._size + HEADER.size - at
            header, self._rest = self._rest, bytearray(self._needed_size(self._rest, left))
            self._rest[: HEADER.size] = header
            at += self._fill_rest(view[at:])
        return at

    def _fill_rest(self, view: memoryview) -> int:
        piece = view[: self._missing_size]
        self._rest[self._filled : self._filled + len(piece)] = piece
        self._filled += len(piece)
        return len(piece)

    def _scan_headers(self, source: pa.Buffer) -> int:
        """Read the headers of the whole batches in a buffer. Return the end of the last one."""
        state = np.zeros(k.SCAN_WIDTH, np.int64)
        state[k.SCAN_ADDRESS], state[k.SCAN_SIZE] = source.address, source.size
        state[k.SCAN_COUNT_MAX] = SCAN_COUNT_MAX
        if source.size < HEADER.size:
            return 0
        headers_at = np.lib.stride_tricks.sliding_window_view(np.frombuffer(source, np.uint8), HEADER.size)
        count = SCAN_COUNT_MAX
        while count == SCAN_COUNT_MAX:
            status = k.scan_batches(state, self._table)
            count = int(state[k.SCAN_COUNT])
            if self.header_crc is not None and count:
                headers = headers_at[self._table[:count, k.POSITION]]
                self.header_crc = crc32c(headers.tobytes(), self.header_crc)
            elif count:
                self._check_offsets(self._table[:count])
            if self._check is not None and count:
                self._check(memoryview(source), self._table[:count])
            if status != k.DONE:
                raise DamageError(
                    f"the bytes at position {int(state[k.SCAN_POSITION])} of a range are not the header of a batch"
                )
        return int(state[k.SCAN_POSITION])

    def _check_offsets(self, table: npt.NDArray[np.int64]) -> None:
        """Check that the offsets of the batches in a table increase, and stay within the part. Used where the manifest
        has no CRCs: the CRC of a batch does not cover its base offset. Raises DamageError.
        """
        base_offsets = table[:, k.BASE_OFFSET]
        ends = base_offsets + table[:, k.LAST_DELTA] + 1
        begins = np.concatenate(([self._next_offset], ends[:-1]))
        wrong = np.flatnonzero((base_offsets < begins) | (ends > self._end))
        if wrong.size:
            place = int(wrong[0])
            raise DamageError(
                f"a batch has the offsets {int(base_offsets[place])} to {int(ends[place]) - 1}, but only offsets from "
                f"{int(begins[place])} to before {self._end} can be at its place"
            )
        self._next_offset = int(ends[-1])
