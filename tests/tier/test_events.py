"""The events that a manifest demands, after any part of them is in the topic, as Kafka's readers take them."""

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.tier.events import Events, copy_started, partition_deleted, partition_of
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.records import (
    DeletionState,
    SegmentRecord,
    SegmentState,
    SegmentUpdateRecord,
    decode_record,
    encode_record,
)
from tests.tier.test_manifest import NOW_MS, segment

PARTITION = RemotePartition("t", uuid.UUID(int=5), 3)
STARTED, FINISHED, DELETING, DELETED = SegmentState

# Kafka's RemoteLogSegmentState: Kafka's readers drop an event whose state does not follow the last one.
NEXT_STATES = {
    SegmentState.COPY_STARTED: {SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED},
    SegmentState.COPY_FINISHED: {SegmentState.DELETE_STARTED},
    SegmentState.DELETE_STARTED: {SegmentState.DELETE_FINISHED},
    SegmentState.DELETE_FINISHED: set(),
}


def may_follow(state, following):
    return following is state or following in NEXT_STATES[state]


def missing(events, manifest):
    """The missing events, which are then in the topic."""
    found = list(events.missing_events(PARTITION, manifest, NOW_MS, 1))
    for event in found:
        events.add_event(decode_record(encode_record(event)))
    events.mark_followed(manifest)
    return found


def states_of(events):
    """What a reader of Kafka knows of each segment after these events."""
    states = {}
    for event in events:
        segment_id = event.segment.segment_id
        if isinstance(event, SegmentRecord):
            assert segment_id not in states, "Kafka adds a segment once"
        else:
            assert may_follow(states[segment_id], SegmentState(event.state)), "Kafka drops this event"
        states[segment_id] = SegmentState(event.state)
    return states


def manifests(count):
    """The manifests after the copy of each of `count` segments, a move of the log start, and the deletion."""
    manifest = Manifest("c")
    yield manifest
    for number in range(count):
        manifest = manifest.with_copied([segment(number)])
        yield manifest
    moved = manifest.with_log_start(count * 100 - 100, NOW_MS + 1, 1)
    yield moved
    yield moved.without_segments({one.segment_id for one in moved.segments[:-1]})


@pytest.mark.extended
@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 20))
def test_the_topic_says_what_the_last_manifest_says_whatever_was_lost(is_followed, kept):
    """Some manifests were followed, then the end of the topic was lost, and a start reads what is left."""
    every = list(manifests(3))
    events, topic = Events(), []
    for manifest, followed in zip(every, is_followed, strict=True):
        topic += missing(events, manifest) if followed else []
    del topic[kept:]
    after = Events()
    for event in topic:
        after.add_event(event)
    topic += missing(after, every[-1])
    states = states_of(topic)
    (left,) = every[-1].segments
    assert states.pop(left.segment_id) is FINISHED
    assert set(states.values()) <= {STARTED, DELETED}
    assert missing(after, every[-1]) == []


def test_a_copy_that_no_manifest_names_is_forgotten_and_not_deleted():
    events = Events()
    events.add_event(copy_started(PARTITION, replace(segment(0), segment_id=uuid.UUID(int=9))))
    found = missing(events, Manifest("c", 0, (segment(0),)))
    assert [event.state for event in found] == [STARTED, FINISHED]
    assert events.states == {segment(0).segment_id: FINISHED}


def test_a_segment_that_kafka_has_copied_is_not_declared_deleted():
    """A directory of Apache Kafka may have the topic, and no manifest names its segments."""
    kafkas = segment(0, by_kafka=True)
    events, written = Events(), Events()
    for event in written.missing_events(PARTITION, Manifest("c", 0, (kafkas,)), NOW_MS, 1):
        events.add_event(event)
    assert events.states == {kafkas.segment_id: FINISHED}
    assert missing(events, Manifest("c")) == []
    assert not events.needs_mark
    assert missing(events, Manifest("c", 0, (kafkas,))) == [], "it is not added again"


def test_the_event_of_a_copied_segment_has_its_summary():
    started, finished, deleting = missing(
        Events(), Manifest("c", 0, (segment(0),)).with_log_start(100, NOW_MS + 7, 2)
    )
    assert finished.custom_metadata == segment(0).summary.encode()
    assert (started.custom_metadata, deleting.custom_metadata) == (None, None)
    assert isinstance(deleting, SegmentUpdateRecord)
    assert (deleting.event_timestamp_ms, deleting.broker_id) == (NOW_MS + 7, 2)


def test_a_partition_is_marked_once():
    events = Events()
    assert not events.needs_mark
    missing(events, Manifest("c", 0, (segment(0),)))
    assert events.needs_mark
    mark = partition_deleted(PARTITION, NOW_MS, 1)
    assert (mark.state, partition_of(mark)) == (DeletionState.MARKED, PARTITION)
    events.add_event(mark)
    assert not events.needs_mark


def test_a_deleted_partition_has_objects_until_their_deletion_is_finished():
    events = Events()
    missing(events, Manifest("c", 0, (segment(0),)))
    assert not events.has_deleted_objects
    events.add_event(partition_deleted(PARTITION, NOW_MS, 1))
    assert events.has_deleted_objects
    events.add_event(partition_deleted(PARTITION, NOW_MS, 1, DeletionState.FINISHED))
    assert not events.has_deleted_objects


@pytest.mark.parametrize("state", [-1, 4, 100])
def test_a_state_that_is_not_known_is_skipped(state):
    events = Events()
    found = missing(events, Manifest("c", 0, (segment(0),)))
    events.add_event(replace(found[1], state=state))
    assert events.states == {segment(0).segment_id: FINISHED}


def test_a_record_of_a_snapshot_names_no_partition():
    assert partition_of(segment(0).to_record()) is None
