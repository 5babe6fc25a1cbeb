"""The events in `__remote_log_metadata`: which events must be there according to a manifest (the list of a partition's
segments in the store), and which of them are missing.

An *event* is a record of `tier.records` that says that the state of a remote segment has changed. The events are
derived from the manifest: an event that the topic lacks is made again from the manifest. The one exception is
COPY_STARTED, which the broker appends before it uploads a segment that no manifest names yet.

Kafka's readers drop an event whose state may not follow the segment's last state. All events of a segment are therefore
made, in the order of the states.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.indexes.summary import Summary
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.records import (
    DeletionState,
    MetadataRecord,
    PartitionDeleteRecord,
    SegmentId,
    SegmentRecord,
    SegmentSnapshotRecord,
    SegmentState,
    SegmentUpdateRecord,
    TopicIdPartition,
)
from stablelog.tier.remote_segment import RemoteSegment


def copy_started(partition: RemotePartition, segment: RemoteSegment) -> SegmentRecord:
    """Return the event COPY_STARTED of a segment, a record for `__remote_log_metadata` that is appended before the
    upload of the segment.
    """
    held = segment.to_record()
    return SegmentRecord(
        segment=SegmentId(topic_partition=_topic_partition(partition), segment_id=segment.segment_id),
        start_offset=held.start_offset,
        end_offset=held.end_offset,
        broker_id=held.broker_id,
        max_timestamp_ms=held.max_timestamp_ms,
        event_timestamp_ms=held.event_timestamp_ms,
        leader_epochs=held.leader_epochs,
        size=held.size,
        custom_metadata=None,
        state=SegmentState.COPY_STARTED,  # type: ignore[arg-type]
        is_txn_index_empty=held.is_txn_index_empty,
    )


def partition_deleted(
    partition: RemotePartition, now_ms: int, broker_id: int, state: DeletionState = DeletionState.MARKED
) -> PartitionDeleteRecord:
    """Return the event for `__remote_log_metadata` that says that the deletion of a partition has begun, because its
    topic was deleted (the state is `DeletionState.MARKED`), or that all objects of the partition were deleted from the
    store (the state is `DeletionState.FINISHED`).
    """
    return PartitionDeleteRecord(
        topic_partition=_topic_partition(partition),
        broker_id=broker_id,  # type: ignore[arg-type]
        event_timestamp_ms=now_ms,  # type: ignore[arg-type]
        state=state,  # type: ignore[arg-type]
    )


def partition_of(event: MetadataRecord) -> RemotePartition | None:
    """Return the partition that an event (record of `__remote_log_metadata`) describes; None if the record does not
    name it.
    """
    if isinstance(event, SegmentSnapshotRecord):
        return None
    named = (
        event.topic_partition if isinstance(event, PartitionDeleteRecord) else event.segment.topic_partition
    )
    return RemotePartition(named.name, named.topic_id or uuid.UUID(int=0), named.partition)


@dataclass(slots=True)
class Events:
    """The events of one partition in `__remote_log_metadata`, reduced to the last state of each segment. Each event
    says that the state of a remote segment, or of the deletion of the partition, has changed.

    Attributes:
        states: the last state of each segment whose deletion is not finished, by segment id.
        is_marked: whether an event says that the deletion of the partition has begun.
        is_finished: whether an event says that the objects of the deleted partition are gone.
        followed: the last manifest (list of the partition's segments in the store) whose events are all in
            `__remote_log_metadata`; None if that is not known.
    """

    states: dict[uuid.UUID, SegmentState] = field(default_factory=dict)
    is_marked: bool = False
    is_finished: bool = False
    followed: Manifest | None = None
    _own: set[uuid.UUID] = field(default_factory=set)  # Segments of `states` that this broker has copied.
    _has_own: bool = False  # Whether this broker has ever copied a segment of the partition.

    def add_event(self, event: MetadataRecord) -> None:
        """Change the known states by an event, a record that `__remote_log_metadata` has about a segment or the
        partition.
        """
        match event:
            case PartitionDeleteRecord():
                self.is_marked = True
                self.is_finished = self.is_finished or int(event.state) == DeletionState.FINISHED
            case SegmentRecord() if event.segment.segment_id is not None:
                self.states.setdefault(event.segment.segment_id, SegmentState.COPY_STARTED)
            case SegmentUpdateRecord() if event.segment.segment_id is not None:
                self._add_update(event.segment.segment_id, event)

    def _add_update(self, segment_id: uuid.UUID, event: SegmentUpdateRecord) -> None:
        try:
            state = SegmentState(event.state)
        except ValueError:
            return  # Skip a state that only a later release of Kafka knows.
        if state is SegmentState.DELETE_FINISHED:
            self.states.pop(segment_id, None)
            self._own.discard(segment_id)
        else:
            self.states[segment_id] = state
        if state is SegmentState.COPY_FINISHED and _is_summary(event.custom_metadata):
            self._own.add(segment_id)
            self._has_own = True

    def missing_events(
        self, partition: RemotePartition, manifest: Manifest, now_ms: int, broker_id: int
    ) -> Iterator[MetadataRecord]:
        """Yield the events that follow from a manifest, the list of the partition's segments in the store, and that
        `__remote_log_metadata` lacks, in the order in which the caller must append them. After that, the topic agrees
        with the manifest.

        If the last event of a segment says that it was copied, and the manifest does not name the segment, the segment
        was deleted from the store: the events of its deletion are yielded. This does not apply to segments that Apache
        Kafka has copied: this broker has no manifest of them.
        """
        named = set()
        for segment in manifest.segments:
            named.add(segment.segment_id)
            for state in _steps(self.states.get(segment.segment_id), segment.state):
                if state is SegmentState.COPY_STARTED:
                    yield copy_started(partition, segment)
                else:
                    yield _update(
                        partition,
                        segment.segment_id,
                        state,
                        segment.event_ms,
                        segment.broker_id,
                        segment.to_record().custom_metadata if state is SegmentState.COPY_FINISHED else None,
                    )
        for segment_id in sorted(self._own - named):
            for state in _steps(self.states[segment_id], SegmentState.DELETE_FINISHED):
                yield _update(partition, segment_id, state, now_ms, broker_id)

    def mark_followed(self, manifest: Manifest) -> None:
        """Record that `__remote_log_metadata` has all events that follow from this manifest, the list of the
        partition's segments in the store. A copy that was started and that the manifest does not name has failed: its
        state is dropped from `states`.
        """
        named = {segment.segment_id for segment in manifest.segments}
        self.states = {
            one: state
            for one, state in self.states.items()
            if one in named or state is not SegmentState.COPY_STARTED
        }
        self.followed = manifest

    @property
    def needs_mark(self) -> bool:
        """Whether `__remote_log_metadata` needs the event that marks the partition as being deleted: this broker has
        copied segments of the partition, and the topic has no such event yet.
        """
        return self._has_own and not self.is_marked

    @property
    def is_of_kafka(self) -> bool:
        """Whether Apache Kafka has copied segments of the partition. Only the events in `__remote_log_metadata` name
        them; this broker has no list of them.
        """
        return any(
            one not in self._own and state is not SegmentState.COPY_STARTED
            for one, state in self.states.items()
        )

    @property
    def is_over(self) -> bool:
        """Whether `__remote_log_metadata` no longer needs the events of a deleted topic's partition: its deletion is
        finished, or neither this broker nor Apache Kafka has copied a segment of it.
        """
        return self.is_finished or not (self._has_own or self.is_of_kafka)

    @property
    def has_deleted_objects(self) -> bool:
        """Whether the store still has objects that this broker has copied of this partition. The partition's deletion
        has begun, and has not ended.
        """
        return self._has_own and self.is_marked and not self.is_finished


def _steps(known: SegmentState | None, wanted: SegmentState) -> list[SegmentState]:
    """Return the states for which a segment needs events to get from the state `known` to `wanted`: those after
    `known`, up to `wanted`, in the order in which a segment has them. None as `known` means that the segment has no
    event yet.
    """
    return [state for state in SegmentState if (known is None or state > known) and state <= wanted]


def _is_summary(custom_metadata: bytes | None) -> bool:
    try:
        return custom_metadata is not None and bool(Summary.decode(custom_metadata))
    except (DamageError, UnknownFormatError):
        return False


def _topic_partition(partition: RemotePartition) -> TopicIdPartition:
    return TopicIdPartition(
        name=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,  # type: ignore[arg-type]
    )


def _update(
    partition: RemotePartition,
    segment_id: uuid.UUID,
    state: SegmentState,
    event_ms: int,
    broker_id: int,
    custom_metadata: bytes | None = None,
) -> SegmentUpdateRecord:
    return SegmentUpdateRecord(
        segment=SegmentId(topic_partition=_topic_partition(partition), segment_id=segment_id),
        broker_id=broker_id,  # type: ignore[arg-type]
        event_timestamp_ms=event_ms,  # type: ignore[arg-type]
        custom_metadata=custom_metadata,
        state=state,  # type: ignore[arg-type]
    )
