"""Proof of a sealed segment in a Spark task: the batch headers of the segment's log file are checked before any record
of the file is decoded.

The task reads the batch headers of the whole log file, even if it needs only a part of the file. It compares the
CRC-32C over the headers with the CRC in the segment's summary. It does not read the records. A worker process proves a
file once.
"""

import mmap
import os
from pathlib import Path

import numpy as np
from crc32c import crc32c

from stablelog.batch.header import HEADER
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DamageError
from stablelog.log.segments.proof import prove_headers
from stablelog.spark.kernels import decode as k
from stablelog.spark.planning import FileExtent
from stablelog.spark.segments.segment_file import GoneError, status_of

SCAN_COUNT_MAX = 1024  # maximum of batch headers that one call of a kernel reads
PROVEN_MAX = 100_000  # maximum of proven segments that a process remembers

_proven: dict[tuple[int, ...], None] = {}  # proven log files, in the order of the proofs


def prove_segment(descriptor: int, extent: FileExtent) -> None:
    """Check the batch headers of an extent's log file against the summary. Without a summary, do nothing.

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
    """Raise an error that names the damaged batch: repeat the check of the log file with the broker's slower code,
    which finds the batch.
    """
    assert extent.proof is not None
    try:
        for _ in prove_headers(LocalDisk(read_only=True), Path(extent.path), *extent.proof):
            pass
        size = status_of(extent.path).st_size
        if size != extent.proof[0]:
            raise DamageError(
                f"{extent.path} has {size} bytes, but had {extent.proof[0]} when it was sealed. Restore the file"
            )
    except DamageError:
        if status_of(extent.path).st_ino != inode:
            raise GoneError(extent.path) from None
        raise


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
    if len(data) < HEADER.size:
        return None
    # A view of the header at each position, without a copy.
    headers_at = np.lib.stride_tricks.sliding_window_view(data, HEADER.size)
    table = np.zeros((SCAN_COUNT_MAX, k.TABLE_WIDTH), np.int64)
    state = np.zeros(k.SCAN_WIDTH, np.int64)
    state[k.SCAN_ADDRESS], state[k.SCAN_SIZE] = data.ctypes.data, len(data)
    state[k.SCAN_COUNT_MAX] = SCAN_COUNT_MAX
    crc = 0
    while state[k.SCAN_POSITION] < len(data):
        status = k.scan_batches(state, table)
        found = table[: state[k.SCAN_COUNT]]
        if status != k.DONE or not len(found):
            return None
        crc = crc32c(headers_at[found[:, k.POSITION]].tobytes(), crc)
    return crc
