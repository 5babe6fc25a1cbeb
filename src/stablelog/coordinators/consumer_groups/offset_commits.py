"""Offset commits: who may commit offsets of a group, which offsets can be committed, and how they are fetched."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    NO_MEMBER,
    CodeByPartition,
    CommittingMember,
    FetchedOffset,
    FetchedOffsets,
    OffsetCommit,
)
from stablelog.coordinators.consumer_groups.classic_group import ClassicGroupState
from stablelog.coordinators.consumer_groups.consumer_protocol.group import ConsumerGroup
from stablelog.coordinators.consumer_groups.consumer_protocol.groups import check_commit
from stablelog.coordinators.consumer_groups.expiry import is_empty
from stablelog.coordinators.consumer_groups.joining import STRING_SIZE_MAX
from stablelog.coordinators.consumer_groups.offsets import OffsetAndMetadata
from stablelog.coordinators.consumer_groups.rebalance import check_generation, check_member
from stablelog.coordinators.consumer_groups.records import OffsetValue
from stablelog.coordinators.consumer_groups.table import AnyGroup
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition


def check_committer(
    groups: Mapping[str, AnyGroup],
    group_id: str,
    committer: CommittingMember,
    missing: ErrorCode,
    *,
    is_transactional: bool,
) -> None:
    """Check that a client may commit offsets of a group.

    Args:
        groups: the groups by group id.
        group_id: the group. For a group that does not exist, only a client that names no member may commit.
        committer: the member that commits, as the request names it. Transactional clients before KIP-447 name no
            member.
        missing: the error code of the refusal if the request names a member and the group does not exist.
        is_transactional: whether the commit is part of a transaction.

    Raises:
        RefusedError: the client may not commit. Nothing has changed.
    """
    if len(group_id.encode()) > STRING_SIZE_MAX:
        raise RefusedError(
            ErrorCode.invalid_group_id, f"the group id in the request has more than {STRING_SIZE_MAX} bytes"
        )
    group = groups.get(group_id)
    if group is None:
        if committer.generation >= 0:
            raise RefusedError(missing, f"there is no group {group_id!r}: join the group again")
        return
    if committer.generation < 0 and is_empty(group):
        return
    if isinstance(group, ConsumerGroup):
        if committer != NO_MEMBER or not is_transactional:
            check_commit(group, committer, is_transactional=is_transactional)
        return
    if committer != NO_MEMBER:
        check_member(group, committer.member_id, committer.group_instance_id)
        check_generation(group, committer.generation)
    elif not is_transactional:
        raise RefusedError(
            ErrorCode.unknown_member_id,
            f"group {group_id!r} has members: only its members may commit offsets; stop them first",
        )
    if group.state is ClassicGroupState.COMPLETING_REBALANCE and not is_transactional:
        raise RefusedError(
            ErrorCode.rebalance_in_progress,
            f"group {group_id!r} is rebalancing: send SyncGroup first",
        )


def valid_offsets(
    commits: Mapping[TopicPartition, OffsetCommit],
    codes: CodeByPartition,
    *,
    metadata_size_max: int,
    expire_ms: int,
    now_ms: int,
) -> Iterator[tuple[TopicPartition, OffsetValue]]:
    """Yield the offsets of a request that can be committed, and add the error code of each partition to `codes`.

    Args:
        commits: the offsets of the request.
        codes: gets the error code of each partition; `ErrorCode.none` for an offset that is yielded.
        metadata_size_max: the maximum size in bytes of the metadata of one offset.
        expire_ms: the time at which the offsets expire, in ms of broker time (which never goes back); negative if the
            broker's retention decides.
        now_ms: broker time, which never goes back, in ms.
    """
    for partition, commit in commits.items():
        metadata = commit.metadata or ""
        if len(metadata.encode()) > metadata_size_max:
            codes[partition] = ErrorCode.offset_metadata_too_large
            continue
        codes[partition] = ErrorCode.none
        # A commit with an expiry of its own needs a record version that has no leader epoch.
        leader_epoch = commit.leader_epoch if expire_ms < 0 else -1
        yield partition, OffsetValue(commit.offset, leader_epoch, metadata, now_ms, expire_ms)


def fetched_offsets(
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    unstable: AbstractSet[TopicPartition],
    partitions: Iterable[TopicPartition] | None,
) -> FetchedOffsets:
    """Return the answer to OffsetFetch for a group.

    Args:
        committed: the committed offsets of the group.
        unstable: the partitions whose offset an open transaction may still change: they get UNSTABLE_OFFSET_COMMIT.
        partitions: the partitions of the answer; None for all of `committed` and `unstable`.
    """
    if partitions is None:
        partitions = [*committed, *sorted(unstable - committed.keys())]
    return {
        partition: FetchedOffset(ErrorCode.unstable_offset_commit)
        if partition in unstable
        else _fetched(committed.get(partition))
        for partition in partitions
    }


def _fetched(offset: OffsetAndMetadata | None) -> FetchedOffset:
    if offset is None:
        return FetchedOffset(ErrorCode.none)
    value = offset.value
    return FetchedOffset(ErrorCode.none, value.offset, value.leader_epoch, value.metadata)
