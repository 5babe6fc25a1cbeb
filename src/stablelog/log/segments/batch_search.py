"""Iteration over the batch headers of a log file, and the search for a batch by offset or position."""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stablelog.batch.header import HEADER, LENGTH_AND_OFFSET_SIZE, BatchHeader, read_header
from stablelog.env.disk import File
from stablelog.errors import DamageError
from stablelog.log.files.names import LOG, PathOf

WALK_READ_SIZE = 64 << 10
FIND_READ_SIZE = 5 << 10  # bytes of one read in a search: an index interval and a header
OFFSETS = struct.Struct(
    ">"  # the fields of a batch's header that a search reads
    "q"  # base_offset
    "i"  # batch_length
    "11x"
    "i"  # last_offset_delta
)


class Found(NamedTuple):
    """The position, the size and the offsets of a batch. `last_offset` is inclusive."""

    position: int
    size: int
    base_offset: int
    last_offset: int


def walk(
    path_of: PathOf, log: Callable[[], File], position: int, size: int, read_size: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch, from the batch that begins at `position` to the end of the file.

    Args:
        path_of: returns the path of the log file, for error messages.
        log: returns the open log file. It is called before each read, because the file may be closed between two
            batches.
        position: the position of the first batch.
        size: the size of the log file.
        read_size: the number of bytes of one read.

    Raises:
        DamageError: the bytes at a position are no batch.
    """
    while position < size:
        chunk = log().read(position, min(read_size, size - position))
        reached = position
        at = 0
        while len(chunk) - at >= HEADER.size:
            header = read_header(chunk, at)
            yield position + at, header
            at += header.size
            reached = position + at
        if reached == position:
            raise DamageError(
                f"{path_of(LOG)}: the {size - position} bytes at byte {position} are no batch. Restore the file"
            )
        position = reached


def seek(path_of: PathOf, log: File, position: int, size: int, *, offset: int, end: int) -> Found | None:
    """Find the first batch from `position` on whose last offset is `offset` or greater, or which ends after byte `end`.

    Args:
        path_of: returns the path of the log file, for error messages.
        log: the log file.
        position: the position of a batch, where the search begins.
        size: the size of the log file.
        offset: the least last offset of the batch, inclusive.
        end: a batch that ends after this position is a result, whatever its offsets are.

    Raises:
        DamageError: the bytes at a position are no batch.
    """
    unpack = OFFSETS.unpack_from
    while position < size:
        view = log.view(position, min(FIND_READ_SIZE, size - position))
        at = 0
        while len(view) - at >= OFFSETS.size:
            base_offset, batch_length, last_offset_delta = unpack(view, at)
            batch_size = batch_length + LENGTH_AND_OFFSET_SIZE
            if batch_size < HEADER.size or last_offset_delta < 0:
                raise DamageError(
                    f"{path_of(LOG)}: the bytes at byte {position + at} are no batch. Restore the file"
                )
            if base_offset + last_offset_delta >= offset or position + at + batch_size > end:
                return Found(position + at, batch_size, base_offset, base_offset + last_offset_delta)
            at += batch_size
        if at == 0:
            raise DamageError(
                f"{path_of(LOG)}: the {size - position} bytes at byte {position} are no batch. Restore the file"
            )
        position += at
    return None
