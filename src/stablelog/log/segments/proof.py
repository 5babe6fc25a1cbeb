"""The proof that a log file holds the batches that its segment's summary describes.

A start of the broker does not read the sealed segments, but trusts their summaries. In the same way, a start trusts a
snapshot for the part of the growing segment that precedes the snapshot. The proof runs before the first read of such a
segment, and finds bytes that the disk has changed or lost. It computes the CRC-32C over the headers of all batches, and
compares this CRC with the one in the summary or snapshot. Each header contains the length and the CRC of its batch.
Only the scrub, a background task that reads all segments, checks the bodies of the batches.
"""

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stablelog.batch.header import (
    HEADER,
    LENGTH_AND_OFFSET_SIZE,
    BatchHeader,
    Buffer,
    crc_holds,
    read_header,
)
from stablelog.crc32c import crc32c
from stablelog.env.disk import Disk, File
from stablelog.errors import DamageError
from stablelog.log.segments.scan import check_crc, scan_batches

SCRUB_SIZE = 1 << 20  # about how many bytes the scrub reads at a time
PIECE_SIZE = 8 << 20  # about how many bytes of the file one step of the proof covers
CHUNK_SIZE = 256 << 10  # bytes that are read at a time: few enough to stay in the processor's cache
# If batches are smaller than this size on average, the proof reads their bodies together with their headers.
SKIPPED_SIZE = 8 << 10
LARGE_SIZE = 256 << 10  # If batches are larger than this on average, their bodies are not read from the disk.
LENGTH = struct.Struct(">8xi")  # batch_length, at byte 8 of a batch


@dataclass(frozen=True, slots=True)
class DamagedBatch:
    """A batch whose body does not match its CRC.

    Attributes:
        position: the position of its first byte in the log file.
        size: the size of the batch in bytes.
        base_offset: the offset of its first record.
        is_control: whether the batch is a control batch, such as a marker.
    """

    position: int
    size: int
    base_offset: int
    is_control: bool = False

    def __str__(self) -> str:
        return (
            f"the CRC of the batch of offset {self.base_offset}, byte {self.position}, does not match its "
            "bytes. Reads of the batch are refused. Restore the file"
        )


def scrub(disk: Disk, path: Path, size: int) -> Iterator[int | DamagedBatch]:
    """Scrub a log file: check the CRC of every batch in its first `size` bytes. `prove_headers` must have checked the
    batch headers before.

    Args:
        disk: the disk of the file.
        path: the path of the log file.
        size: how many bytes to check. They end with a whole batch.

    Yields:
        Each damaged batch. In addition, after about every SCRUB_SIZE bytes, the number of bytes read since the last
        such number.

    Raises:
        FileNotFoundError: retention or compaction has deleted the segment.
        DiskError: the file cannot be read.
        DamageError: the bytes at the position of a header are no header.
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
    """Return the message about a batch whose bytes do not have the CRC in its header, so they have changed since they
    were written.
    """
    return f"{path}: the CRC of the batch at offset {header.base_offset}, byte {position}, does not match its bytes. Restore the file"


def prove_headers(
    disk: Disk, path: Path, size: int, crc: int, mapped: memoryview | None = None
) -> Iterator[None]:
    """Prove the batch headers in the first `size` bytes of a log file: check that they have the CRC that the segment's
    summary or a snapshot records.

    Args:
        disk: the disk of the file.
        path: the path of the log file.
        size: how many bytes to check. They end with a whole batch.
        crc: the expected CRC-32C over the headers of these batches.
        mapped: these bytes of the memory-mapped file, from which readers will read. The proof loads them into memory,
            so that the readers need not wait for the disk.

    Yields:
        None after each step, which covers about 8 MiB of the file. Any thread may run a step.

    Raises:
        DamageError: the file does not hold these batches. The message names the first damaged batch, if it can be
            found.
        DiskError: the file cannot be read.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise DamageError(f"{path} is missing, and was durable. Restore the file") from None
    with closing(file):
        if file.size < size:
            raise DamageError(
                f"{path} holds only {file.size} bytes, but {size} bytes were durable. Restore the file"
            )
        yield from _walk(file, path, size, crc, mapped)


def _walk(file: File, path: Path, size: int, crc: int, mapped: memoryview | None) -> Iterator[None]:
    """Check the batch headers of an open log file for `prove_headers`: yield None after each step."""
    position = found = count = piece_end = ready_end = 0
    while position < size:
        average = position // count if count else 0
        if position >= piece_end:
            if position:
                yield
            piece_end = position + PIECE_SIZE
            if average < LARGE_SIZE:
                # If each header were read alone, each read would wait for the disk. So the kernel is asked to read
                # ahead.
                file.will_need(position, min(2 * PIECE_SIZE, size - position))
                # The mapped bytes are loaded into memory with the bodies of the batches: the proof does not need them,
                # but readers will. Without a memory map, or a call of the operating system for this, nothing is loaded.
                is_ready = mapped is not None and file.populate(mapped[position:piece_end])
                ready_end = min(piece_end, size) if is_ready else 0
        chunk: bytes | memoryview
        if mapped is not None and position + HEADER.size <= ready_end:
            chunk = mapped[position:ready_end]
            if average < SKIPPED_SIZE:  # slices of a `bytes` object cost less than slices of a memoryview
                chunk = bytes(chunk[:CHUNK_SIZE])
        else:
            chunk_size = CHUNK_SIZE if average < SKIPPED_SIZE else HEADER.size
            # The bytes are copied from the file, not taken from the mapped pages: if the disk cannot read a sector,
            # access to a mapped page would end the process with a signal.
            chunk = file.read(position, min(chunk_size, size - position))
        try:
            headers, at = raw_headers_in(chunk)
        except DamageError:
            raise _damaged(file, path, size) from None
        if not headers:
            raise _damaged(file, path, size)
        found = crc32c(b"".join(headers), found)
        count += len(headers)
        position += at
    if position != size or found != crc:
        raise _damaged(file, path, size)


def raw_headers_in(buffer: Buffer) -> tuple[list[Buffer], int]:
    """Find the headers of the batches in a buffer. Only the field `batch_length` of a header is checked.

    Args:
        buffer: bytes of a log file, which begin with a header. An incomplete header at the end is ignored.

    Returns:
        Two values: the 61 bytes of each header; and the position after the last of these batches, which may be after
        the end of the buffer.

    Raises:
        DamageError: no batch can have the `batch_length` in a header.
    """
    headers: list[Buffer] = []
    size, unpack = HEADER.size, LENGTH.unpack_from
    at, last = 0, len(buffer) - size
    while at <= last:
        headers.append(buffer[at : at + size])
        (length,) = unpack(buffer, at)
        if length < size - LENGTH_AND_OFFSET_SIZE:
            raise DamageError(f"batch at byte {at} has batch_length {length}, which no batch can have")
        at += length + LENGTH_AND_OFFSET_SIZE
    return headers, at


def _damaged(file: File, path: Path, size: int) -> DamageError:
    """Return the error for a log file whose batch headers do not have the recorded CRC. Its message names the first
    batch whose CRC is wrong or whose offset does not follow the batch before it.
    """
    end_offset = 0
    why = "the offset or the leader epoch of a batch has changed"
    try:
        for position, header, batch in scan_batches(file.read, 0, size):
            check_crc(header, batch, position)
            if header.base_offset < end_offset:
                raise DamageError(
                    f"the batch of offset {header.base_offset}, byte {position}, does not follow offset {end_offset - 1} of the batch before it"
                )
            end_offset = header.next_offset
    except DamageError as error:
        why = str(error)
    return DamageError(
        f"{path}: the batches are not those that were synced; {why}. Reads of this segment are refused. Restore the file"
    )
