"""Proof of a sealed segment in a Spark task: the batch headers of the segment's log file are checked before any record
of the file is decoded.

The task reads the batch headers of the whole log file, even if it needs only a part of the file. It compares the
CRC-32C over the headers with the CRC in the segment's summary, a small file with its sizes and checksums. It does not
read the records. A worker process proves a file once.
"""

import mmap
import os

import numpy as np

from stablelog.errors import DamageError
from stablelog.spark.kernels import decode as k
from stablelog.spark.planning import FileExtent
from stablelog.spark.segments.segment_file import GoneError, prove_file, status_of

PROVEN_MAX = 100_000  # maximum of proven segments that a process remembers

_proven: dict[tuple[int, ...], None] = {}  # proven log files, in the order of the proofs


def prove_segment(descriptor: int, extent: FileExtent) -> None:
    """Check the batch headers of the whole log file that contains an extent (a range of bytes that a task reads). They
    are compared with the segment's summary, a file with its size and checksums. Without a summary, do nothing.

    Args:
        descriptor: file descriptor of the log file.
        extent: a part of the log file, with the size and CRC from the summary.

    Raises:
        GoneError: the headers differ, and the file was removed or replaced meanwhile.
        DamageError: the headers do not match the summary. The message names the file and, if it can be found, the
            damaged batch.
        DiskError: the file cannot be read.
    """
    if extent.proof is None:
        return
    found = os.fstat(descriptor)
    key = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, *extent.proof)
    if key in _proven:
        return
    if found.st_size != extent.proof[0] or headers_crc(descriptor, found.st_size) != extent.proof[1]:
        _name_damage(extent, found.st_ino)
    _proven[key] = None
    while len(_proven) > PROVEN_MAX:
        del _proven[next(iter(_proven))]


def _name_damage(extent: FileExtent, inode: int) -> None:
    """Raise an error that names the damaged batch of a log file. To find the batch, the check of the file is repeated
    with the broker's code, which is slower. `inode` is the inode of the checked file.
    """
    assert extent.proof is not None
    prove_file(extent.path, inode, extent.proof)
    found = status_of(extent.path)
    if found.st_ino != inode:
        raise GoneError(extent.path)
    if found.st_size != extent.proof[0]:
        raise DamageError(
            f"{extent.path} has {found.st_size} bytes, but had {extent.proof[0]} when it was sealed. Restore the file"
        )


def headers_crc(descriptor: int, size: int) -> int | None:
    """Return the CRC-32C over all batch headers of a log file. Return None if its first `size` bytes are not whole
    batches.
    """
    if not size:
        return 0
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as mapped:
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        data = np.frombuffer(mapped, np.uint8)
        try:
            return _walked(data)
        finally:
            del data  # A mapping cannot be closed while an array refers to it.


def _walked(data: "np.typing.NDArray[np.uint8]") -> int | None:
    crc = end = 0
    try:
        for table in k.batch_tables(data):
            crc = k.crc_of_headers(data, table, crc)
            end = int(table[-1, k.POSITION] + table[-1, k.SIZE])
    except DamageError:
        return None
    return crc if end == len(data) else None
