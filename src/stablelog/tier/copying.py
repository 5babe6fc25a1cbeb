"""Copies to the object store: which segments of a partition can be copied, and how a manifest describes a copied
segment.

A segment is copied when it is sealed and durable, and when all its offsets are before the last stable offset. Then no
transaction that began in it or before it is open, so the content of the segment is final. Segments are copied in the
order of their offsets, so that the manifest has no gap.

Source: KIP-405.
"""

import uuid
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

from stablelog.errors import DamageError
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.files.names import COMMIT_SUFFIXES, INDEX_SUFFIXES, PRODUCERS, SNAPSHOT, file_path
from stablelog.log.indexes.summary import Summary
from stablelog.log.partition import Partition
from stablelog.log.segments.segment import Segment
from stablelog.log.segments.segments import Segments
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest
from stablelog.tier.remote_segment import RemoteSegment


def copyable(segments: Segments, end_offset: int, stable_offset: int) -> list[Segment]:
    """Return the segments that can be copied, oldest first.

    Args:
        segments: the local segments.
        end_offset: the first offset that is not in the store. If it is in the middle of a segment, because the log
            start is there, the whole segment is copied.
        stable_offset: the last stable offset.
    """
    found: list[Segment] = []
    for segment in segments.ending_behind(end_offset):
        is_final = segment.sealed and segment.durable and segment.end_offset <= stable_offset
        if not is_final or segment.summary is None:
            break
        found.append(segment)
    return found


def view_start_of(partition: Partition) -> int:
    """Return the first position of a commit-ordered partition that is not deleted; 0 for another partition."""
    return 0 if partition.view is None else partition.view.start_offset


def check_history(manifest: Manifest, segments: Iterable[Segment], directory: str) -> None:
    """Check that the local segments and the segments in the store belong to the same log. They do not if the data
    directory was copied and both copies are in use, or if an old data directory was restored.

    Args:
        manifest: the last manifest in the store.
        segments: the local segments, oldest first.
        directory: the directory of the partition in the store, for the message.

    Raises:
        DamageError: the local log ends before the last segment in the store, or divides its records in another way.
    """
    rows = {row.base_offset: row for row in manifest.segments}
    copied_end = manifest.segments[-1].end_offset if manifest.segments else 0
    copied_start = manifest.segments[0].base_offset if manifest.segments else 0
    end_offset = 0
    for segment in segments:
        end_offset = segment.end_offset
        is_compared = copied_start <= segment.base_offset < copied_end
        if is_compared and not _is_same(rows.get(segment.base_offset), segment):
            raise DamageError(
                f"the local segment {segment.base_offset} differs from that of {directory} in the object store: the "
                "store and the data directory are not of the same log. Restore the data directory, or use another prefix"
            )
    if end_offset < copied_end:
        raise DamageError(
            f"the object store has segments of {directory} up to offset {copied_end}, and the local log ends at offset "
            f"{end_offset}: the store and the data directory are not of the same log. Restore the data directory, or use "
            "another prefix"
        )


def _is_same(row: RemoteSegment | None, segment: Segment) -> bool:
    """Whether a remote segment can be a copy of a local segment. Aborted data may have been removed from one of the
    two: this one is smaller and has fewer records, but as many committed records as the other.
    """
    if row is None or row.end_offset != segment.end_offset:
        return False
    if row.size == segment.size:
        return True
    if row.summary is None or segment.summary is None:
        return False
    less, more = sorted((row.summary, segment.summary), key=attrgetter("log_size"))
    return (
        less.record_count < more.record_count
        and less.committed_count == more.committed_count
        and less.max_timestamp <= more.max_timestamp
    )


def other_files(directory: Path, base_offset: int, end_offset: int) -> dict[IndexKind, Path]:
    """Return, by kind, the paths of a segment's files that go into the object of its indexes. A segment may lack some
    of these files.
    """
    suffixes = (*INDEX_SUFFIXES, *COMMIT_SUFFIXES)
    kinds = (
        IndexKind.OFFSETS,
        IndexKind.TIMES,
        IndexKind.TRANSACTIONS,
        IndexKind.COMMIT_ENTRIES,
        IndexKind.COMMIT_EXTENTS,
        IndexKind.COMMIT_SUMMARY,
    )
    paths = {
        kind: file_path(directory, base_offset, suffix) for kind, suffix in zip(kinds, suffixes, strict=True)
    }
    # A snapshot has the producer state before its offset.
    paths[IndexKind.SNAPSHOT] = file_path(directory, end_offset, SNAPSHOT)
    paths[IndexKind.PRODUCERS] = file_path(directory, end_offset, PRODUCERS)
    return paths


def epochs_up_to(entries: Sequence[tuple[int, int]], end_offset: int) -> LeaderEpochs:
    """Return the leader epochs that begin before an offset, as Kafka copies them with a segment."""
    epochs = LeaderEpochs(list(entries))
    epochs.truncate_to(end_offset)
    return epochs


def copied_segment(
    summary: Summary,
    epochs: LeaderEpochs,
    *,
    segment_id: uuid.UUID,
    broker_id: int,
    now_ms: int,
) -> RemoteSegment:
    """Return the description of a copied segment for the manifest, without its cut points (`tier.cut_points`).

    Args:
        summary: the summary of the segment.
        epochs: the leader epochs up to the end of the segment.
        segment_id: the id of this copy.
        broker_id: the id of the broker.
        now_ms: the time of the broker's clock.
    """
    base = summary.base_offset
    first = epochs.epoch_of(base)
    own = [(max(first, 0), base), *((epoch, start) for epoch, start in epochs.entries if start > base)]
    return RemoteSegment(
        segment_id,
        base,
        summary.end_offset,
        summary.log_size,
        summary.max_timestamp,
        tuple(own),
        event_ms=now_ms,
        broker_id=broker_id,
        summary=summary,
        is_txn_index_empty=summary.txnindex_size == 0,
    )
