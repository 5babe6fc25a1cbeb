"""The files of a sealed segment: compares them with the segment's summary, and maps the indexes."""

from pathlib import Path

from crc32c import crc32c

from stablelog.env.disk import Buffer, Disk
from stablelog.errors import Corrupt
from stablelog.log.files.names import INDEX, LOG, TIMEINDEX, TXNINDEX, PathOf
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import TransactionIndex


def are_files_of(disk: Disk, path_of: PathOf, summary: Summary) -> bool:
    """Whether a segment's files are those of the summary, as far as a start checks it.

    This checks sizes and the transaction index. The other indexes are checked when they are first used.
    """
    try:
        sizes = (LOG, summary.log_size), (INDEX, summary.index_size), (TIMEINDEX, summary.timeindex_size)
        if any(disk.size(path_of(suffix)) != size for suffix, size in sizes):
            return False
        path = path_of(TXNINDEX)
        if summary.txnindex_size == 0:
            return not disk.exists(path) or disk.size(path) == 0
        content = disk.read_bytes(path)
        return len(content) == summary.txnindex_size and crc32c(content) == summary.txnindex_crc
    except FileNotFoundError:
        return False


def load_indexes(disk: Disk, path_of: PathOf, summary: Summary) -> tuple[OffsetIndex, TimeIndex] | None:
    """The offset and the time index; None if a file is missing or is not what the summary says."""
    index = _mapped(disk, path_of(INDEX), summary.index_size, summary.index_crc)
    timeindex = _mapped(disk, path_of(TIMEINDEX), summary.timeindex_size, summary.timeindex_crc)
    if index is None or timeindex is None:
        return None
    return OffsetIndex(summary.base_offset, index), TimeIndex(summary.base_offset, timeindex)


def load_txn_index(disk: Disk, path_of: PathOf, summary: Summary) -> TransactionIndex:
    """The transaction index.

    Raises:
        Corrupt: it is not what the summary says. Which transactions were aborted is then not known.
    """
    path = path_of(TXNINDEX)
    content: Buffer | None = b""
    if summary.txnindex_size:
        content = _mapped(disk, path, summary.txnindex_size, summary.txnindex_crc)
    if content is None:
        raise Corrupt(f"{path} is damaged; restart the broker to have it made anew from the log")
    return TransactionIndex(content)


def _mapped(disk: Disk, path: Path, size: int, crc: int) -> Buffer | None:
    """The content of an index file; None if it is missing, or if its size or CRC is another one."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        if file.size != size:
            return None
        content = file.view(0, size)
    finally:
        file.close()
    return content if crc32c(content) == crc else None
