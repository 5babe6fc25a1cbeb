"""Iteration over the batch headers of a log file, and the search for a batch by offset or position."""

import struct
from collections.abc import Iterator

from stablelog.batch.header import HEADER, LENGTH_AND_OFFSET_SIZE, MAGIC, BatchHeader, read_header
from stablelog.errors import DamageError
from stablelog.log.search.source import OFFSET_MAX, FoundBatch, LogBytes

WALK_READ_SIZE = 64 << 10
MAGIC_AT = 16  # the position of the magic in a batch
FIND_READ_SIZE = 5 << 10  # bytes of one read in a search: an index interval and a header
OFFSETS = struct.Struct(
    ">"  # the fields of a batch's header that a search reads
    "q"  # base_offset
    "i"  # batch_length
    "11x"
    "i"  # last_offset_delta
)


def walk(log: LogBytes, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch from `position` to the end of the log file. The last batch may reach past
    the file's end.

    Args:
        log: the log file.
        position: the position of the first batch.

    Raises:
        DamageError: the bytes at a position are no batch.
        NotLoadedError: the next bytes are not loaded from the object store.
    """
    while position < log.size:
        begin, piece = position, log.piece(position, WALK_READ_SIZE)
        while begin + len(piece) - position >= HEADER.size:
            try:
                header = read_header(piece, position - begin, begin)
            except DamageError as error:
                raise log.no_batch_at(position, error) from None
            yield position, header
            position += header.size
        if position == begin:
            _end_at(log, position)
            return


def seek(log: LogBytes, position: int, *, offset: int, end: int = OFFSET_MAX) -> FoundBatch | None:
    """Find the first batch, from `position` on, that contains or follows an offset, or that ends after a byte of the
    file.

    Args:
        log: the log file.
        position: the position of a batch, where the search begins.
        offset: the batch that is found has this offset or a later one as its last offset.
        end: a position in the file, in bytes. The first batch that ends after it is found, too, whatever its offsets
            are.

    Returns:
        The batch; None if there is none.

    Raises:
        DamageError: the bytes at a position are no batch.
        NotLoadedError: the next bytes are not loaded from the object store.
    """
    unpack, fields_size, header_size, size = OFFSETS.unpack_from, OFFSETS.size, HEADER.size, log.size
    while position < size:
        piece = log.piece(position, FIND_READ_SIZE)
        at, last = 0, len(piece) - fields_size
        while at <= last:
            base_offset, batch_length, last_offset_delta = unpack(piece, at)
            batch_size = batch_length + LENGTH_AND_OFFSET_SIZE
            if batch_size < header_size or last_offset_delta < 0:
                raise log.no_batch_at(position + at, None)
            if base_offset + last_offset_delta >= offset or position + at + batch_size > end:
                if position + at + batch_size > size:
                    _end_at(log, position + at)
                    return None
                if piece[at + MAGIC_AT] != MAGIC:
                    raise log.no_batch_at(position + at, None)
                return FoundBatch(position + at, batch_size, base_offset, base_offset + last_offset_delta)
            at += batch_size
        if at == 0:
            _end_at(log, position)
            return None
        position += at
    return None


def _end_at(log: LogBytes, position: int) -> None:
    """End a search at a batch that reaches past the end of the log file. If the log file has an error for such a batch,
    raise it; otherwise the file is still being written, and the batch does not count.
    """
    error = log.torn_at(position)
    if error is not None:
        raise error
