"""The scanner of a log file: reads one batch after another, and checks each field on which it relies, because any byte
of the file may be damaged.

Recovery, verification, the repair tools and Spark's directory reader use it.
"""

from collections.abc import Callable, Iterator

from stablelog.batch.header import HEADER, BatchHeader, Buffer, crc_holds, read_header
from stablelog.errors import DamageError

BATCHES_READ_SIZE = 4 << 20  # how many bytes are read at a time; more for a larger batch
HEADERS_READ_SIZE = 64 << 10
Read = Callable[[int, int], bytes]


class TornError(DamageError):
    """A log file ends inside a batch, because a write is not finished, or because a crash or a disk fault has removed
    the file's end.
    """


def scan_batches(
    read: Read, begin: int, end: int, *, with_bodies: bool = True
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield each batch in the bytes [begin, end) of a log file: its position, its header and its bytes.

    The caller checks the CRC (`check_crc`) and the offsets.

    Args:
        read: called as `read(position, size)`; returns up to `size` bytes of the file at this position.
        begin: the position of the first batch.
        end: the end of the last batch, exclusive.
        with_bodies: whether all bytes of a batch are read. If not, the 61 bytes of its header are yielded, and large
            bodies are not read.

    Raises:
        TornError: the last batch ends after `end`.
        DamageError: the bytes where a header is expected are not a header.
    """
    read_size = BATCHES_READ_SIZE if with_bodies else HEADERS_READ_SIZE
    chunk, chunk_begin, position = memoryview(b""), begin, begin
    while position < end:
        if position + HEADER.size > chunk_begin + len(chunk):
            chunk, chunk_begin = _read_chunk(read, position, end, HEADER.size, read_size), position
        header = read_header(chunk, position - chunk_begin, chunk_begin)
        needed = header.size if with_bodies else HEADER.size
        if header.size > end - position:
            raise TornError(
                f"a torn batch at byte {position}: only {end - position} of its {header.size} bytes are there"
            )
        if position + needed > chunk_begin + len(chunk):
            chunk, chunk_begin = _read_chunk(read, position, end, needed, read_size), position
        at = position - chunk_begin
        yield position, header, chunk[at : at + needed]
        position += header.size


def _read_chunk(read: Read, position: int, end: int, needed: int, read_size: int) -> memoryview:
    chunk = memoryview(read(position, min(max(needed, read_size), end - position)))
    if len(chunk) < needed:
        raise TornError(f"a torn batch at byte {position}: only {len(chunk)} of {needed} bytes are there")
    return chunk


def check_offset(header: BatchHeader, position: int, end_offset: int, gapless_epoch: int) -> None:
    """Raise DamageError if the offset of a batch does not follow the batches before it.

    Args:
        header: the header of the batch.
        position: the position of the batch in the log file, for the message.
        end_offset: the end of the batches before it, exclusive.
        gapless_epoch: a leader epoch. A batch of this epoch or a later one must begin exactly at `end_offset`; one of
            an earlier epoch may begin later.
    """
    if header.base_offset < end_offset:
        wanted = f"but this offset must be greater than {end_offset - 1}"
    elif header.leader_epoch >= gapless_epoch and header.base_offset != end_offset:
        wanted = f"but this offset must be {end_offset}: a batch is missing, or the offset has changed"
    else:
        return
    raise DamageError(f"the batch at byte {position} begins at offset {header.base_offset}, {wanted}")


def check_crc(header: BatchHeader, batch: Buffer, position: int) -> None:
    """Raise DamageError if the CRC of a batch does not match its bytes. `position` is where the batch begins in the log
    file, for the error message.
    """
    if not crc_holds(batch, 0, header):
        raise DamageError(
            f"the CRC of the batch at offset {header.base_offset}, byte {position}, does not match its bytes"
        )
