"""Checks whether the last manifest in the store describes the same log as the partition's local directory, and which of
its statements are true of the local log. (A manifest is the list of the partition's segments in the store.)

Another *incarnation* of the partition may have published the manifest: a broker on a copy of the data directory, or on
a restored directory. Its log and the local one were the same up to some offset, and differ after it. Each may have
acknowledged records after this offset. So a statement of its manifest is used only if it agrees with the local log, or
with the files in which this directory records its remote tier:

- The segments must be those of the local log, batch for batch, and those that this directory has published. The local
  log must not end before them. Otherwise the manifest is refused.
- The local log must not end before the durable log end that the manifest records, unless the two were restored
  differently: their offsets after a restore are not comparable. A log that is only the beginning of the other one, for
  example that of a stale copy of the directory, would give acknowledged offsets to other records.
- The log start offset may be greater than the recorded one: the other incarnation has deleted records. Records that are
  only in the store are then gone, and the log start follows. It never passes a record of the local log: such a manifest
  is refused.
- The offsets that a restore has left out are taken from this directory, not from the manifest. The next manifest has
  them as this directory has them.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from stablelog.errors import DamageError
from stablelog.log.files.restored import Restored
from stablelog.log.segments.segment import Segment
from stablelog.tier.manifest import Manifest
from stablelog.tier.records import SegmentState
from stablelog.tier.remote_segment import RemoteSegment

ADVICE = (
    'Restore the data directory, use another prefix, or follow docs/guides/back-up.md, "Return to a prefix that a stale copy has '
    'used"'
)


class LocalHistory(NamedTuple):
    """What the local directory of a partition says about its history: its segments, what was published of them, and
    what restores have lost.

    Attributes:
        directory: the directory of the partition in the store, for messages.
        cluster_id: the id of the cluster.
        segments: the local segments, oldest first.
        start_offset: the first offset of the local log.
        log_start: the recorded log start offset of the remote tier; for a coordinator's log, that of the local log.
        recorded: the last manifest (list of the segments in the store) that was recorded in the directory; None if that
            is not known.
        restored: the offsets and commits that restores of this directory have lost; None if it was never restored.
    """

    directory: str
    cluster_id: str
    segments: Sequence[Segment]
    start_offset: int
    log_start: int
    recorded: Manifest | None
    restored: Restored | None

    @property
    def end_offset(self) -> int:
        """The offset after the last record of the local log."""
        return self.segments[-1].end_offset if self.segments else self.start_offset


class ProvenManifest(NamedTuple):
    """The last manifest in the store (the list of a partition's segments there), after the check that it belongs to the
    history of the local log.

    Attributes:
        manifest: the manifest.
        is_foreign: whether the last manifest says something that is not true of the local log, because another
            incarnation of the partition has published it. The next manifest must then be published soon.
        lost: the offsets of records that were only in the store, and that another incarnation (a broker on another copy
            of the data directory) has deleted; None if there are none.
    """

    manifest: Manifest
    is_foreign: bool = False
    lost: tuple[int, int] | None = None


def proven_manifest(manifest: Manifest | None, local: LocalHistory) -> ProvenManifest:
    """Check that the last manifest in the store, the list of a partition's segments there, belongs to the history of
    the local log: the broker that published it had this log, or one that agrees with it. Return the manifest with
    corrections where the local log differs, for example in the log start offset.

    Args:
        manifest: the last manifest; None if there is none.
        local: what the partition's directory says about its history.

    Raises:
        DamageError: the manifest is of another cluster or of another history, or the store has lost segments.
    """
    if manifest is not None and manifest.cluster_id != local.cluster_id:
        raise DamageError(
            f"the manifest (the list of remote segments) of {local.directory} was written by cluster "
            f"{manifest.cluster_id}, but this data directory belongs to cluster {local.cluster_id}"
        )
    _check_known(manifest, local)
    if manifest is None:
        return ProvenManifest(Manifest(local.cluster_id, local.start_offset))
    published = manifest.published
    is_foreign = published is not None and published.restored != local.restored
    _check_history(manifest, local)
    if published is not None and not is_foreign and local.end_offset < published.log_end:
        raise DamageError(
            "the store and the data directory are not of the same log: the last manifest (list of "
            f"remote segments) of {local.directory} was written when the log had durable records up "
            f"to offset {published.log_end}, but the local log ends at offset {local.end_offset}. "
            f"{ADVICE}"
        )
    known_start = max(local.log_start, 0 if local.recorded is None else local.recorded.log_start)
    if manifest.log_start > max(known_start, local.start_offset):
        raise DamageError(
            "a broker on another data directory has deleted records that this one keeps: the last "
            f"manifest (list of remote segments) of {local.directory} begins at offset "
            f"{manifest.log_start}, and the local log at offset {local.start_offset}. {ADVICE}"
        )
    is_deleted = local.recorded is not None and manifest.log_start > known_start
    lost = (known_start, manifest.log_start) if is_deleted else None
    if published is not None and is_foreign:
        published = published._replace(restored=local.restored)
    return ProvenManifest(manifest._replace(published=published), is_foreign, lost)


def _check_known(manifest: Manifest | None, local: LocalHistory) -> None:
    """Check that the last manifest in the store, the list of a partition's segments there, still names all segments
    that this directory has published. Raises DamageError if it does not: then the store has lost segments, or a broker
    on another copy of the data directory has published the manifest.
    """
    if local.recorded is None or not local.recorded.segments:
        return
    known_end = local.recorded.segments[-1].end_offset
    # The last segments may be gone because the log start has passed them.
    found_end = manifest.end_offset if manifest is not None else 0
    if found_end < known_end:
        raise DamageError(
            f"objects of {local.directory} are lost: the object store has its segments up to offset "
            f"{found_end}, but the broker has copied its segments up to offset {known_end}. Restore "
            "the store"
        )
    assert manifest is not None
    found = {one.base_offset: one.segment_id for one in manifest.segments}
    for one in local.recorded.segments:
        is_live = one.state is SegmentState.COPY_FINISHED and one.end_offset > manifest.log_start
        if is_live and found.get(one.base_offset) != one.segment_id:
            raise DamageError(
                "the store and the data directory are not of the same log: the last manifest (list of "
                f"remote segments) of {local.directory} lacks segment {one.base_offset}, which this data "
                f"directory has copied. {ADVICE}"
            )


def _check_history(manifest: Manifest, local: LocalHistory) -> None:
    """Check that the local segments and the segments in the store belong to the same log. They do not if the data
    directory was copied and both copies are in use, or if an old data directory was restored.

    Raises:
        DamageError: the local log ends before the last segment in the store, or has other batches.
    """
    rows = {row.base_offset: row for row in manifest.segments}
    copied_end = manifest.segments[-1].end_offset if manifest.segments else 0
    copied_start = manifest.segments[0].base_offset if manifest.segments else 0
    for segment in local.segments:
        is_compared = copied_start <= segment.base_offset < copied_end
        if is_compared and not is_same(rows.get(segment.base_offset), segment):
            raise DamageError(
                "the store and the data directory are not of the same log: the local segment "
                f"{segment.base_offset} of {local.directory} differs from its copy in the object store. "
                f"{ADVICE}"
            )
    if local.end_offset < copied_end:
        raise DamageError(
            "the store and the data directory are not of the same log: the object store has segments "
            f"of {local.directory} up to offset {copied_end}, but the local log ends at offset "
            f"{local.end_offset}. {ADVICE}"
        )


def is_same(row: RemoteSegment | None, segment: Segment) -> bool:
    """Return whether a remote segment (`row`, from the list of the segments in the store) can be a copy of a local
    segment. The batch headers of both, which contain the CRCs of the batches, must be the same. If the data of aborted
    transactions was removed from one of the two, their headers differ, and only the numbers of committed records are
    compared. `row` is None if the store has no such segment.
    """
    if row is None or row.end_offset != segment.end_offset:
        return False
    if row.summary is None or segment.summary is None:
        return row.size == segment.size
    if row.size == segment.size:
        return row.summary.log_crc == segment.summary.log_crc
    less, more = sorted((row.summary, segment.summary), key=attrgetter("log_size"))
    return (
        less.record_count < more.record_count
        and less.committed_count == more.committed_count
        and less.max_timestamp <= more.max_timestamp
    )
