"""Copies to the object store: which segments of a partition can be copied, and how a manifest (the list of the
partition's segments in the store) describes a copied segment.

A segment is copied when it is sealed (another segment follows it) and durable, and when all its offsets are before the
last stable offset. Then no transaction that began in it or before it is still open, so the content of the segment is
final. Segments are copied in the order of their offsets, so that the manifest has no gap.

Source: KIP-405.
"""

import uuid
from collections.abc import Sequence
from pathlib import Path

from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.files.names import COMMIT_SUFFIXES, INDEX_SUFFIXES, PRODUCERS, SNAPSHOT, file_path
from stablelog.log.indexes.summary import Summary
from stablelog.log.partition import Partition
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.segments.segments import LogSegments
from stablelog.tier.index_object import IndexKind
from stablelog.tier.remote_segment import RemoteSegment


def copyable(segments: LogSegments, end_offset: int, stable_offset: int) -> list[SealedSegment]:
    """Return the segments that can be copied to the store now, oldest first: those that are sealed, durable, and before
    the last stable offset.

    Args:
        segments: the local segments.
        end_offset: the first offset that is not in the store. If it is in the middle of a segment, because the log
            start offset has moved there, the whole segment is copied.
        stable_offset: the last stable offset.
    """
    found: list[SealedSegment] = []
    for segment in segments.ending_behind(end_offset):
        if (
            not isinstance(segment, SealedSegment)
            or not segment.durable
            or segment.end_offset > stable_offset
        ):
            break
        found.append(segment)
    return found


def view_start_of(partition: Partition) -> int:
    """Return the start of a partition's view (its committed batches in the order of their commits): the first position
    in commit order whose record is not deleted. It is 0 for a partition that is not commit-ordered.
    """
    return 0 if partition.view is None else partition.view.start_offset


def other_files(directory: Path, base_offset: int, end_offset: int) -> dict[IndexKind, Path]:
    """Return the paths of the files that are uploaded together as a segment's object of indexes, by kind: the indexes
    and the producer snapshots. Not all of these files need exist.
    """
    # The first kinds are in the order of the suffixes.
    indexes = zip(IndexKind, (*INDEX_SUFFIXES, *COMMIT_SUFFIXES), strict=False)
    return {
        **{kind: file_path(directory, base_offset, suffix) for kind, suffix in indexes},
        # A snapshot has the producer state before its offset.
        IndexKind.SNAPSHOT: file_path(directory, end_offset, SNAPSHOT),
        IndexKind.PRODUCERS: file_path(directory, end_offset, PRODUCERS),
    }


def epochs_up_to(entries: Sequence[tuple[int, int]], end_offset: int) -> LeaderEpochs:
    """Return those of the leader epochs (pairs of an epoch and its first offset) that begin before `end_offset`. As in
    Kafka, this list is copied with each segment, so that a reader of the segment knows the epochs of the log up to its
    end.
    """
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
    """Return the description of a copied segment for the manifest, the list of a partition's segments in the store. The
    caller adds the cut points, at which readers may divide the log file (`tier.cut_points`).

    Args:
        summary: the summary of the segment: its sizes, times and checksums.
        epochs: the leader epochs up to the end of the segment.
        segment_id: the id of this copy.
        broker_id: the id of the broker.
        now_ms: the time of the broker's clock.
    """
    base = summary.base_offset
    return RemoteSegment(
        segment_id,
        base,
        summary.end_offset,
        summary.log_size,
        summary.max_timestamp,
        (
            (max(epochs.epoch_of(base), 0), base),
            *((epoch, start) for epoch, start in epochs.entries if start > base),
        ),
        event_ms=now_ms,
        broker_id=broker_id,
        summary=summary,
        is_txn_index_empty=summary.txnindex_size == 0,
    )
