"""The list of topics alone: what it allows, what it finds, and what it would write. No file is read or written."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_list import TopicList
from stablelog.data_directory.catalog import Catalog, DeletedTopic, ListedTopic, encode_catalog
from stablelog.errors import RefusedError, UsageError


def empty(**settings):
    return TopicList(BrokerConfig({name.replace("_", "."): value for name, value in settings.items()}))


def reserve(topics, name, count=1, configs=(), **more):
    return topics.reserve_new(name, count, dict(configs), topic_id=uuid.uuid4(), **more)


def create(topics, name, count=1, configs=()):
    topic = reserve(topics, name, count, configs)
    topics.add(topic)
    topics.grow(topic, count)
    topics.end_reservation(topic)
    return topic


def delete(topics, name):
    topic = topics.reserve_deletion(name)
    topics.remove(topic)
    topics.end_reservation(topic)


def refused(work, *arguments):
    with pytest.raises(RefusedError) as refusal:
        work(*arguments)
    return ErrorCode(refusal.value.code)


def test_a_topic_is_found_by_its_name_and_its_id_until_it_is_removed():
    topics = empty()
    topic = create(topics, "orders", 3, {"retention.ms": "5"})
    assert topics.get("orders") is topics.named("orders") is topic
    assert topics.name_of(topic.topic_id) == "orders"
    assert (topic.partition_count, topic.configs["retention.ms"]) == (3, "5")
    delete(topics, "orders")
    assert topics.get("orders") is topics.name_of(topic.topic_id) is topics.name_of(None) is None
    assert refused(topics.named, "orders") is ErrorCode.unknown_topic_or_partition


def test_each_change_of_the_list_has_a_version_of_its_own():
    topics, seen = empty(), set()
    topic = create(topics, "t")
    for change in (
        lambda: None,
        lambda: topics.grow(topic, 2),
        lambda: delete(topics, "t"),
        lambda: create(topics, "t"),
    ):
        change()
        seen.add(topics.version)
    assert len(seen) == 4


def test_a_name_is_taken_from_its_reservation_on():
    topics = empty()
    reserve(topics, "a.b")
    assert refused(reserve, topics, "a.b") is ErrorCode.topic_already_exists
    assert refused(reserve, topics, "a_b") is ErrorCode.topic_already_exists
    assert list(topics) == []


@pytest.mark.parametrize("work", ["reserve_deletion", "reserve_growth"])
def test_a_topic_that_is_being_changed_is_changed_by_no_other_request(work):
    topics = empty()
    topic = create(topics, "t")
    arguments = ("t", 5)[: 1 + (work == "reserve_growth")]
    topics.reserve_growth("t", 2)
    assert refused(getattr(topics, work), *arguments) is ErrorCode.reassignment_in_progress
    topics.end_reservation(topic)
    getattr(topics, work)(*arguments)


def test_a_deleted_name_is_free_when_its_deletion_has_ended():
    topics = empty()
    topic = create(topics, "t")
    topics.reserve_deletion("t")
    topics.remove(topic)
    assert refused(reserve, topics, "t") is ErrorCode.topic_already_exists
    topics.end_reservation(topic)
    assert create(topics, "t").topic_id != topic.topic_id


@pytest.mark.parametrize("count", [-1, 0, 1, 2])
def test_a_topic_only_grows(count):
    topics = empty()
    create(topics, "t", 2)
    assert refused(topics.reserve_growth, "t", count) is ErrorCode.invalid_partitions


def test_the_greatest_number_of_partitions_counts_those_that_are_being_created():
    topics = empty(stablelog_max_partitions="4")
    create(topics, "t", 2)
    reserve(topics, "u", 1)
    assert refused(reserve, topics, "v", 2) is ErrorCode.invalid_partitions
    assert refused(topics.reserve_growth, "t", 4) is ErrorCode.invalid_partitions
    topics.reserve_growth("t", 3)


def test_an_internal_topic_is_made_by_the_broker_alone_and_never_deleted():
    topics = empty()
    assert refused(reserve, topics, "__consumer_offsets") is ErrorCode.invalid_topic_exception
    own = reserve(topics, "__consumer_offsets", own=True)
    topics.add(own)
    topics.end_reservation(own)
    assert own.configs == {}
    assert refused(topics.reserve_deletion, "__consumer_offsets") is ErrorCode.invalid_topic_exception


def test_settings_that_are_fixed_or_not_valid_are_refused():
    topics = empty()
    topic = create(topics, "t", 1, {"stablelog.order": "commit"})
    topics.check_configs(topic, {"stablelog.order": "commit", "retention.ms": "5"})
    for configs in ({}, {"stablelog.order": "commit", "retention.ms": "x"}):
        with pytest.raises(UsageError):
            topics.check_configs(topic, configs)
    assert refused(reserve, topics, "u", 1, {"no.such": "1"}) is ErrorCode.invalid_config


def test_the_content_of_the_file_fills_the_list_and_is_its_content():
    listed = [
        ListedTopic(name, uuid.uuid4(), count, {"retention.ms": "7"}) for name, count in (("a", 1), ("b", 3))
    ]
    gone = DeletedTopic("c", uuid.uuid4(), 2)
    topics = empty()
    topics.fill(Catalog("cluster", 7, 3, listed, [gone]))
    assert topics.encoded() == encode_catalog("cluster", 7, 3, listed, [gone])
    assert {topic.name: topic.partition_count for topic in topics} == {"a": 1, "b": 3}
    assert topics.deleted == {gone.topic_id: gone}


NAMES = st.sampled_from("abc")
CHANGES = st.lists(
    st.tuples(st.just("create"), NAMES, st.integers(0, 3))
    | st.tuples(st.just("grow"), NAMES, st.integers(0, 6))
    | st.tuples(st.just("delete"), NAMES, st.just(0)),
    max_size=20,
)


@pytest.mark.extended
@given(CHANGES)
def test_the_list_is_that_of_a_dictionary(changes):
    topics, model = empty(), {}
    for what, name, count in changes:
        before = topics.encoded()
        try:
            if what == "create":
                create(topics, name, count)
            elif what == "grow":
                topic = topics.reserve_growth(name, count)
                topics.grow(topic, count - topic.partition_count)
                topics.end_reservation(topic)
            else:
                delete(topics, name)
        except RefusedError:
            known = model.get(name)
            may_be = {
                "create": known is None and count > 0,
                "grow": known is not None and count > known,
                "delete": known is not None,
            }
            assert not may_be[what]
            assert topics.encoded() == before
        else:
            model[name] = count
            if what == "delete":
                del model[name]
        assert {topic.name: topic.partition_count for topic in topics} == model
        assert topics.reservations.existing == model.keys()
        assert all(topics.name_of(topic.topic_id) == topic.name for topic in topics)


def test_a_topic_keeps_its_entry_until_it_changes():
    topic = Topic("t", uuid.uuid4(), 1, {})
    first = topic.listed
    assert topic.listed is first
    topic.partition_count = 2
    assert topic.listed.partition_count == 2
    topic.configs = {"retention.ms": "1"}
    assert topic.listed.configs == {"retention.ms": "1"}
