"""The proof that a log file holds the batches of which its segment's summary was made.

A start of the broker trusts the summaries of sealed segments, and a snapshot for the part of the growing segment
before it, without reading the log. What a disk changed or lost meanwhile is found by this proof, before the first
read: the CRC-32C over the headers of all batches, each of which holds the CRC of its body and its length. Bodies are
proven by the scrub.
"""

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from stablelog.batch.header import HEADER, LENGTH_AND_OFFSET_SIZE, BatchHeader, crc_holds, read_header
from stablelog.env.disk import Disk, File
from stablelog.errors import Corrupt
from stablelog.log.segments.scan import check_crc, scan_batches

SCRUB_SIZE = 1 << 20  # bytes that the scrub reads at a time, about
PIECE_SIZE = 8 << 20  # bytes that are walked over between two yields, about
CHUNK_SIZE = 256 << 10  # copies stay in the processor's cache
SKIPPED_SIZE = 8 << 10  # of batches, on average, whose bodies are not copied along with their headers
LARGE_SIZE = 256 << 10  # of batches, on average, whose bodies are not read from the disk either
LENGTH = struct.Struct(">i")
LENGTH_AT = 8  # in a batch


@dataclass(frozen=True, slots=True)
class DamagedBatch:
    """A batch whose body is not what was written.

    Attributes:
        position: of its first byte in the log file.
        size: bytes.
        base_offset: of its first record.
        is_control: whether it is a marker.
    """

    position: int
    size: int
    base_offset: int
    is_control: bool = False

    def __str__(self) -> str:
        return (
            f"the CRC of the batch of offset {self.base_offset}, byte {self.position}, does not hold. Nothing is read "
            "from it. Restore the file"
        )


def scrub(disk: Disk, path: Path, size: int) -> Iterator[int | DamagedBatch]:
    """Check the CRC of every batch in the first `size` bytes of a log file whose headers are proven.

    Args:
        disk: where the file lies.
        path: of the log file.
        size: bytes; they end with a whole batch.

    Yields:
        After about SCRUB_SIZE bytes, how many were read; and each damaged batch.

    Raises:
        FileNotFoundError: the segment was deleted meanwhile.
        DiskError: the file cannot be read.
        Corrupt: a header is not one.
    """
    with closing(disk.open(path)) as file:
        position = read_size = 0
        while position < size:
            header = read_header(file.read(position, HEADER.size))
            batch = file.read(position, header.size)
            if len(batch) < header.size or not crc_holds(batch, 0, header):
                yield DamagedBatch(position, header.size, header.base_offset, header.is_control)
            position += header.size
            read_size += header.size
            if read_size >= SCRUB_SIZE or position >= size:
                yield read_size
                read_size = 0


def bad_crc(path: Path, header: BatchHeader, position: int) -> str:
    """The message of a batch whose bytes are not those that were written."""
    return f"{path}: the CRC of the batch at offset {header.base_offset}, byte {position}, does not hold. Restore the file"


def prove_headers(
    disk: Disk, path: Path, size: int, crc: int, mapped: memoryview | None = None
) -> Iterator[None]:
    """Prove the first `size` bytes of a log file, a piece at a time. May run in any thread.

    Args:
        disk: where the file lies.
        path: of the log file.
        size: bytes to prove; they end with a whole batch.
        crc: CRC-32C over the headers of these batches.
        mapped: these bytes as readers have the file mapped. The proof loads their pages for the readers.

    Raises:
        Corrupt: they are not those batches. Names the first batch that is damaged, where that can be told.
        DiskError: the file cannot be read.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise Corrupt(f"{path} is gone, and was durable. Restore it") from None
    with closing(file):
        if file.size < size:
            raise Corrupt(f"{path} holds {file.size} bytes; {size} were durable. Restore it")
        yield from _walk(file, path, size, crc, mapped)


def _walk(file: File, path: Path, size: int, crc: int, mapped: memoryview | None) -> Iterator[None]:
    position = found = count = piece_end = ready_end = 0
    unpack, header_size = LENGTH.unpack_from, HEADER.size
    while position < size:
        average = position // count if count else 0
        if position >= piece_end:
            if position:
                yield
            piece_end = position + PIECE_SIZE
            if average < LARGE_SIZE:
                # Headers alone, read one by one, would each wait for the disk.
                file.will_need(position, min(2 * PIECE_SIZE, size - position))
                ready_end = min(piece_end, size) if _is_ready(file, mapped, position, piece_end) else 0
        chunk: bytes | memoryview
        if mapped is not None and position + header_size <= ready_end:
            chunk = mapped[position:ready_end]
            if average < SKIPPED_SIZE:  # slices of bytes cost less than slices of a view
                chunk = bytes(chunk[:CHUNK_SIZE])
        else:
            chunk_size = CHUNK_SIZE if average < SKIPPED_SIZE else header_size
            # A copy, because a sector that cannot be read would end the process if it were mapped.
            chunk = file.read(position, min(chunk_size, size - position))
        at, last = 0, len(chunk) - header_size
        if last < 0:
            raise _damaged(file, path, size)
        headers = []
        while at <= last:
            headers.append(chunk[at : at + header_size])
            (length,) = unpack(chunk, at + LENGTH_AT)
            if length < header_size - LENGTH_AND_OFFSET_SIZE:
                raise _damaged(file, path, size)
            at += length + LENGTH_AND_OFFSET_SIZE
        found = crc32c(b"".join(headers), found)
        count += len(headers)
        position += at
    if position != size or found != crc:
        raise _damaged(file, path, size)


def _is_ready(file: File, mapped: memoryview | None, begin: int, end: int) -> bool:
    """Whether a piece of the mapped file is in memory now: bodies, too, since readers get them from there."""
    return mapped is not None and file.populate(mapped[begin:end])


def _damaged(file: File, path: Path, size: int) -> Corrupt:
    """The error, with the first batch whose CRC does not hold or whose offsets do not follow."""
    end_offset = 0
    why = "the offset or the leader epoch of a batch has changed"
    try:
        for position, header, batch in scan_batches(file.read, 0, size):
            check_crc(header, batch, position)
            if header.base_offset < end_offset:
                raise Corrupt(
                    f"the batch of offset {header.base_offset}, byte {position}, follows offset {end_offset - 1}"
                )
            end_offset = header.next_offset
    except Corrupt as error:
        why = str(error)
    return Corrupt(
        f"{path}: the batches are not those that were synced; {why}. Nothing is read from this segment. Restore the file"
    )
