"""The report of a restore: which records of each partition are lost, and which transactions are torn: lost in a part of
their partitions.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from stablelog.coordinators.transactions.restored_transactions import Torn

# What the object store has nothing of, so that a restore cannot bring it back.
NOT_RESTORED: Final = (
    "users",
    "ACLs",
    "quotas",
    "topics without tiered storage",
    "settings of the command line",
)


class PartitionLoss(NamedTuple):
    """The records of one partition that a restore could not bring back.

    Attributes:
        topic: the name of the topic.
        partition: the number of the partition.
        log_start: the first offset of the restored log.
        lost_from: the first offset whose record is lost.
        log_end: the last log end offset that a manifest (the list of the partition's segments in the object store)
            recorded; None if no manifest recorded one.
        log_end_ms: the time at which this manifest was published, in ms since 1970; None if no manifest recorded a log
            end offset.
        next_offset: the offset of the first new record; None for the log of a coordinator.
    """

    topic: str
    partition: int
    log_start: int
    lost_from: int
    log_end: int | None
    log_end_ms: int | None
    next_offset: int | None


class GroupAhead(NamedTuple):
    """A committed offset whose record is lost. The consumers of the group get an error at this offset.

    Attributes:
        group: the id of the group.
        topic: the name of the topic.
        partition: the number of the partition.
        offset: the committed offset.
        lost_from: the first offset whose record is lost.
    """

    group: str
    topic: str
    partition: int
    offset: int
    lost_from: int


class LeftOut(NamedTuple):
    """A transaction that the restore aborts in one partition, because the store may have only some of its records
    there. Because it is aborted, no reader gets only a part of it.

    Attributes:
        transactional_id: the transactional id; None if the commit log does not have the transaction any more.
        commit_sequence: the number of its commit in the order of commits; -1 if the transaction was aborted, or if the
            commit log does not have it any more.
        topic: the name of the topic.
        partition: the number of the partition.
        first_offset: the offset of its first record in the partition.
        record_count: how many records of the transaction in this partition the store has.
    """

    transactional_id: str | None
    commit_sequence: int
    topic: str
    partition: int
    first_offset: int
    record_count: int


class Report(NamedTuple):
    """The result of a restore: what was found, and what is lost.

    Attributes:
        cluster_id: the id of the cluster.
        node_id: the id of the broker.
        ranges: for each partition, the range of offsets whose records are lost.
        groups: the committed offsets whose records are lost.
        torn: the torn commits: some of a commit's partitions have its records, and others have lost them.
        left_out: the transactions of which the store may have only some records of a partition.
        torn_sequences: the greatest commit sequence (a commit's number in the order of commits) of a commit that may be
            torn, by transaction group, the topics whose commits have one order.
        commit_sequences: the commit sequence that the next commit after the restore gets, by transaction group.
        next_producer_id: the producer id that the coordinator assigns next.
        leader_epoch: the leader epoch of the restore.
        settings: the dynamic settings of the broker, by name.
        default_settings: the dynamic settings of all brokers of the cluster.
        group_settings: the settings of single consumer groups, by the name of the group.
        not_restored: the kinds of data that the store does not have.
    """

    cluster_id: str
    node_id: int
    ranges: list[PartitionLoss]
    groups: list[GroupAhead]
    torn: list[Torn]
    left_out: list[LeftOut]
    torn_sequences: Mapping[str, int]
    commit_sequences: Mapping[str, int]
    next_producer_id: int
    leader_epoch: int
    settings: Mapping[str, str]
    default_settings: Mapping[str, str]
    group_settings: Mapping[str, Mapping[str, str]]
    not_restored: tuple[str, ...] = NOT_RESTORED
