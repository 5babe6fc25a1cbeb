"""The end of the log in segment files, and the last stable offset there, without a broker.

A snapshot (a file with the producer state at an offset) and a summary (a file beside a sealed segment, with its sizes
and checksums) record which transactions were open at their offset. From the last such offset on, the batch headers tell
which transactions are open and which were aborted.
"""

import os
from pathlib import Path

from stablelog.crc32c import crc32c
from stablelog.errors import DamageError, adding_path
from stablelog.log.files.names import PRODUCERS, SNAPSHOT, TXNINDEX, file_path, snapshot_offsets
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import decode_producers, decode_snapshot
from stablelog.log.search.source import ReaderRows
from stablelog.spark.segments.segment_file import SegmentFile, read_or_nothing


def scanned_end(directory: Path, segments: ReaderRows[SegmentFile]) -> tuple[int, int, list[AbortedTxn]]:
    """Find the end of the log and the last stable offset, by reading the batch headers after the last snapshot or
    summary (files that record the open transactions at an offset).

    Args:
        directory: the directory of the partition.
        segments: its segments, as they were listed.

    Returns:
        A tuple: the log end offset, the last stable offset, and the aborted transactions whose abort markers were read.

    Raises:
        GoneError: a file was removed.
        DamageError: a file is damaged.
    """
    aborted: list[AbortedTxn] = []
    if not segments:
        return 0, 0, aborted
    start, producers = _known_point(directory, segments)
    end = max(start, segments[-1].base_offset)
    for segment in segments.ending_behind(start):
        batch = segment.find(start) if start > segment.base_offset else None
        if start > segment.base_offset and batch is None:
            continue
        for position, header in segment.walk(batch.position if batch is not None else 0):
            end = max(end, header.next_offset)
            if header.is_transactional:
                content = segment.batch_at(position, header.size) if header.is_control else b""
                ended = producers.apply_read_batch(header, content, 0)
                if ended is not None:
                    producers.end_transaction(ended)
                    aborted += [] if ended.aborted is None else [ended.aborted]
    return end, producers.first_open_offset(end), aborted


def _known_point(directory: Path, segments: ReaderRows[SegmentFile]) -> tuple[int, Producers]:
    """Find the last snapshot (a file with the producer state) or summary (a small file with the sizes and the state of
    a sealed segment). Both record the transactions that were open at their offset. Return a pair: the offset of the
    file that was found, from which on the caller has to read the batch headers, and the state of the producers at this
    offset.
    """
    last, first_offset = segments[-1], segments[0].base_offset
    for offset in reversed(snapshot_offsets(os.listdir(directory))):
        path = file_path(directory, offset, SNAPSHOT)
        if offset < first_offset or (offset > last.base_offset and last.find(offset - 1) is None):
            continue  # The snapshot describes records that were removed, or that a crash has lost.
        try:
            with adding_path(path):
                table = decode_snapshot(read_or_nothing(path), 0)
        except DamageError:
            continue
        if offset <= _aborts_known_to(directory, segments, offset):
            return offset, Producers.from_table(table, 0)
    for segment in reversed(segments):
        if segment.stable_offset is not None and segment.stable_offset <= _aborts_known_to(
            directory, segments, None
        ):
            return max(segment.stable_offset, first_offset), Producers()
    return first_offset, Producers()


def _aborts_known_to(directory: Path, segments: ReaderRows[SegmentFile], snapshot: int | None) -> int:
    """Return the offset up to which the transaction indexes are known to be complete, so that no aborted transaction
    before it can be overlooked.

    A sealed segment's summary (a small file with its sizes and checksums) says whether it has a transaction index. For
    the growing segment, the `.producers` file of a snapshot says it. Without such a file, the index of a segment may
    have been lost, and a reader would get aborted records.
    """
    last = segments[-1]
    agrees = _progress_agrees(directory, last, snapshot)
    for segment in segments:
        is_known = segment.summary is not None or segment.has_txn_index
        if not is_known and not (segment is last and agrees):
            return segment.base_offset
    return last.base_offset if agrees is False else 2**63 - 1


def _progress_agrees(directory: Path, last: SegmentFile, snapshot: int | None) -> bool | None:
    """Return whether the transaction index of the growing segment still begins with the entries that it had at the time
    of a snapshot; None if no snapshot has recorded them.
    """
    if snapshot is None:
        return None
    path = file_path(directory, snapshot, PRODUCERS)
    try:
        with adding_path(path):
            _, progress = decode_producers(read_or_nothing(path))
    except DamageError:
        return None
    if progress.base_offset != last.base_offset:
        return None
    entries = read_or_nothing(last.beside(TXNINDEX))
    return crc32c(entries[: progress.txnindex_size]) == progress.txnindex_crc
