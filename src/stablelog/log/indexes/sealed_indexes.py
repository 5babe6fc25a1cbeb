"""The index files of a sealed segment: their check against the segment's summary, which records their sizes and CRCs,
and their mapping into memory.
"""

from contextlib import closing, suppress
from pathlib import Path

from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DamageError
from stablelog.log.files.names import INDEX, LOG, TIMEINDEX, TXNINDEX, PathOf
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import TransactionIndex


def are_files_of(disk: Disk, path_of: PathOf, summary: Summary) -> bool:
    """Whether the files of a segment match its summary, which records their sizes and checksums. The function checks
    what a start of the broker checks: all file sizes, and the content of the transaction index.

    The contents of the other indexes are checked at their first use.
    """
    try:
        if (
            disk.size(path_of(LOG)) != summary.log_size
            or disk.size(path_of(INDEX)) != summary.index_size
            or disk.size(path_of(TIMEINDEX)) != summary.timeindex_size
        ):
            return False
        path = path_of(TXNINDEX)
        if summary.txnindex_size == 0:
            return not disk.exists(path) or disk.size(path) == 0
        content = disk.read_bytes(path)
        return len(content) == summary.txnindex_size and crc32c(content) == summary.txnindex_crc
    except FileNotFoundError:
        return False


def load_indexes(disk: Disk, path_of: PathOf, summary: Summary) -> tuple[OffsetIndex, TimeIndex] | None:
    """Map the offset index and the time index of a segment into memory. Return both, the offset index first; None if
    one of the files is missing, or does not have the size and the CRC that the segment's summary records.
    """
    index = _mapped(disk, path_of(INDEX), summary.index_size, summary.index_crc)
    timeindex = _mapped(disk, path_of(TIMEINDEX), summary.timeindex_size, summary.timeindex_crc)
    if index is None or timeindex is None:
        return None
    return OffsetIndex(summary.base_offset, index), TimeIndex(summary.base_offset, timeindex)


def load_txn_index(disk: Disk, path_of: PathOf, summary: Summary) -> TransactionIndex:
    """Map the transaction index of a segment into memory.

    Raises:
        DamageError: the file does not have the size and the CRC that the segment's summary records, so it is unknown
            which transactions were aborted.
    """
    path, size = path_of(TXNINDEX), summary.txnindex_size
    content = _mapped(disk, path, size, summary.txnindex_crc) if size else b""
    if content is None:
        raise DamageError(f"{path} is damaged. Restart the broker, which then rebuilds the file from the log")
    return TransactionIndex(content)


def _mapped(disk: Disk, path: Path, size: int, crc: int) -> Buffer | None:
    """Map an index file into memory. Return None if it is missing, or if its size or CRC is wrong."""
    with suppress(FileNotFoundError), closing(disk.open(path)) as file:
        content = file.view(0, size) if file.size == size else None
        return content if content is not None and crc32c(content) == crc else None
    return None
