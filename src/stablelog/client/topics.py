"""Requests for topics, partitions and offsets, and decoding of their responses."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from stablelog.client.responses import RetriableError, UnknownTopicOrPartitionError, check
from stablelog.types import TOPIC_NAME_RULE, TOPIC_NAME_SIZE_MAX, TopicPartition, is_topic_name

EARLIEST_LOCAL: Final = -4  # the special timestamp of the first offset on the local disk
ISOLATIONS: Final = {"read_uncommitted": 0, "read_committed": 1}


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic.

    Attributes:
        leader_id: the node id of the partition's leader; -1 if it has no leader.
        is_offline: whether the partition has no leader and one of its replicas is offline.
        leader_epoch: the partition's leader epoch; -1 if the broker does not send it.
    """

    leader_id: int
    is_offline: bool
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as a Metadata response describes it: the topic's id, or None if the broker does not send it, and its
    partitions by their numbers.
    """

    name: str
    topic_id: UUID | None
    partitions: Mapping[int, PartitionDescription]
    is_internal: bool

    def leader_epoch(self, partition: int) -> int:
        """Return the leader epoch of a partition; -1 if there is no such partition, or if the broker does not send
        leader epochs.
        """
        found = self.partitions.get(partition)
        return -1 if found is None else found.leader_epoch


class ListedOffset(NamedTuple):
    """A result of `list_offsets` for one partition: an offset, the timestamp of its record in ms, and a leader epoch.
    Offset and timestamp are -1 if no record is at or after the requested time. The leader epoch is that of the record,
    or the partition's present one if the request was for the start or the end; -1 if it is unknown.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


def by_topic(targets: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by topic, as Kafka's requests do: return the numbers of the partitions in `targets` for each
    topic name.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for topic, partition in targets:
        found[topic].append(partition)
    return found


def metadata_request(names: Iterable[str] | None) -> Any:
    """Build the request for the metadata of these topics; None for all topics. It forbids the broker to create missing
    topics.
    """
    from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic

    topics = (
        None if names is None else tuple(MetadataRequestTopic(topic_id=None, name=name) for name in names)
    )
    return MetadataRequest(
        topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


def missing_topic(name: str, bootstrap: str, *, ordered: bool = False) -> str:
    """Return the message for a topic that does not exist. It contains the command that creates the topic, or the rule
    of names if no topic can have this name. With `ordered`, the topic has to be commit-ordered (created with
    `stablelog.order=commit`), so the command creates such a topic.
    """
    if not is_topic_name(name):
        return f"{name[:TOPIC_NAME_SIZE_MAX]!r} is not a valid topic name: {TOPIC_NAME_RULE}"
    missing = f"there is no topic {name!r} at {bootstrap}"
    if ordered:
        return f"{missing}. `stablelog topics create {name} --config stablelog.order=commit` creates it for this reader"
    return (
        f"{missing}. `stablelog topics create {name}` creates it; with --config stablelog.order=commit, readers get whole "
        "transactions from it"
    )


def read_topics(response: Any, bootstrap: str) -> dict[str, TopicDescription]:
    """Return the topics of a Metadata response by name.

    Raises:
        UnknownTopicOrPartitionError: a topic does not exist.
        RefusedError: the response has another error for a topic.
        RetriableError: a topic has no leader yet.
    """
    found = {}
    for topic in response.topics:
        if topic.error_code is ErrorCode.unknown_topic_or_partition:
            raise UnknownTopicOrPartitionError(missing_topic(topic.name, bootstrap))
        if topic.error_code is ErrorCode.leader_not_available:
            raise RetriableError(
                f"topic {topic.name!r} has no leader yet: its partitions are being opened, or are offline"
            )
        check(topic.error_code, f"topic {topic.name!r}")
        partitions = {
            p.partition_index: PartitionDescription(
                p.leader_id, p.leader_id < 0 and bool(p.offline_replicas), p.leader_epoch
            )
            for p in sorted(topic.partitions, key=lambda p: p.partition_index)
        }
        found[topic.name] = TopicDescription(topic.name, topic.topic_id, partitions, topic.is_internal)
    return found


def offsets_request(specs: Mapping[TopicPartition, int], isolation: str) -> Any:
    """Build the ListOffsets request for partitions of one leader.

    Args:
        specs: for each partition the timestamp in ms whose offset is sought, or a special value such as EARLIEST.
        isolation: read_committed or read_uncommitted.
    """
    # Version 8 is the first that has EARLIEST_LOCAL.
    version = 8 if EARLIEST_LOCAL in specs.values() else 7
    messages: Any = import_module(f"kio.schema.list_offsets.v{version}.request")
    return messages.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=ISOLATIONS[isolation],
        topics=tuple(
            messages.ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    messages.ListOffsetsPartition(partition_index=index, timestamp=specs[topic, index])
                    for index in indexes
                ),
            )
            for topic, indexes in by_topic(specs).items()
        ),
    )


def epoch_request(leader_epochs: Mapping[TopicPartition, int]) -> Any:
    """Build the OffsetForLeaderEpoch request for partitions of one leader. `leader_epochs` has, for each partition, the
    leader epoch whose end offset is sought.
    """
    from kio.schema.offset_for_leader_epoch.v4.request import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
        OffsetForLeaderTopic,
    )

    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=tuple(
            OffsetForLeaderTopic(
                topic=topic,
                partitions=tuple(
                    OffsetForLeaderPartition(partition=index, leader_epoch=leader_epochs[topic, index])
                    for index in indexes
                ),
            )
            for topic, indexes in by_topic(leader_epochs).items()
        ),
    )


def read_offsets(response: Any) -> tuple[dict[TopicPartition, ListedOffset], dict[TopicPartition, ErrorCode]]:
    """Read a ListOffsets response.

    Returns:
        A pair of mappings by partition: the offsets of the partitions without an error in the response, and the error
        codes of all others.
    """
    found, refused = {}, {}
    for topic in response.topics:
        for partition in topic.partitions:
            target = (topic.name, partition.partition_index)
            if partition.error_code is ErrorCode.none:
                found[target] = ListedOffset(partition.offset, partition.timestamp, partition.leader_epoch)
            else:
                refused[target] = partition.error_code
    return found, refused
