"""Topics: create, list, describe, add partitions, delete records, delete."""

import uuid
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.topics import (
    CreatedTopic,
    add_partitions,
    create_topic,
    delete_records,
    delete_topic,
    describe_topic,
    list_topics,
)
from stablelog.errors import RefusedError, UnavailableError
from tests.client.core.scripted import NONE, Brokers, part, reply

TOPICS = {"u": 1, "t": 4, "__internal": 2}


def created(code=NONE, message=None):
    def answer(request):
        result = part(
            request,
            "CreatableTopicResult",
            name=request.topics[0].name,
            topic_id=uuid.UUID(int=7),
            error_code=code,
            error_message=message,
            num_partitions=3,
            replication_factor=1,
            configs=None,
        )
        return reply(request, topics=(result,))

    return answer


def changed(name, list_name, code=NONE):
    def answer(request):
        return reply(
            request, **{list_name: (part(request, name, name="t", error_code=code, error_message="no"),)}
        )

    return answer


def test_topics_are_listed_by_name_without_those_of_the_brokers():
    brokers = Brokers({}, TOPICS)
    assert list(brokers.run(list_topics(brokers.cluster()))) == ["t", "u"]
    assert list(brokers.run(list_topics(brokers.cluster(), internal=True))) == ["__internal", "t", "u"]


def test_a_topic_is_described_by_its_partitions():
    brokers = Brokers({}, TOPICS)
    assert list(brokers.run(describe_topic(brokers.cluster(), "t")).partitions) == [0, 1, 2, 3]


def test_a_topic_that_does_not_exist_is_refused_with_the_command_that_creates_it():
    brokers = Brokers({}, TOPICS)
    with pytest.raises(RefusedError, match="`stablelog topics create nope` creates it"):
        brokers.run(describe_topic(brokers.cluster(), "nope"))


def test_a_topic_is_created_with_the_brokers_defaults_unless_others_are_given():
    brokers = Brokers({"CreateTopics": created()})
    assert brokers.run(create_topic(brokers.cluster(), "t")) == CreatedTopic("t", uuid.UUID(int=7), 3)
    brokers.run(create_topic(brokers.cluster(), "t", partitions=2, replication_factor=1, configs={"a": "1"}))
    first, second = (request.topics[0] for _, request in brokers.requests("CreateTopics"))
    assert (first.num_partitions, first.replication_factor, first.configs) == (-1, -1, ())
    assert (second.num_partitions, second.replication_factor) == (2, 1)
    assert [(one.name, one.value) for one in second.configs] == [("a", "1")]


def test_the_broker_may_work_until_the_deadline_of_the_call():
    brokers = Brokers({"CreateTopics": created()})
    cluster = brokers.cluster(deadline_s=100)
    brokers.run(cluster.run_until_deadline(create_topic(cluster, "t")))
    assert brokers.request("CreateTopics").timeout == timedelta(seconds=100)


def test_a_refused_topic_is_named():
    brokers = Brokers({"CreateTopics": created(ErrorCode.topic_already_exists, "there is one")})
    with pytest.raises(RefusedError, match=r"^creating topic 't': there is one"):
        brokers.run(create_topic(brokers.cluster(), "t"))


def test_partitions_are_added_and_the_next_call_knows_them():
    brokers = Brokers({"CreatePartitions": changed("CreatePartitionsTopicResult", "results")}, dict(TOPICS))
    cluster = brokers.cluster()
    brokers.run(add_partitions(cluster, "t", 6))
    (topic,) = brokers.request("CreatePartitions").topics
    assert (topic.name, topic.count) == ("t", 6)
    brokers.topics["t"] = 6
    assert len(brokers.run(cluster.topic("t")).partitions) == 6


def test_a_topic_is_deleted_and_the_next_call_asks_whether_it_exists():
    brokers = Brokers({"DeleteTopics": changed("DeletableTopicResult", "responses")}, dict(TOPICS))
    cluster = brokers.cluster()
    brokers.run(delete_topic(cluster, "t"))
    assert brokers.request("DeleteTopics").topic_names == ("t",)
    del brokers.topics["t"]
    with pytest.raises(RefusedError, match="there is no topic 't'"):
        brokers.run(cluster.topic("t"))


@pytest.mark.parametrize(
    "call",
    [lambda cluster: add_partitions(cluster, "nope", 3), lambda cluster: delete_topic(cluster, "nope")],
)
def test_a_topic_that_does_not_exist_is_not_changed(call):
    brokers = Brokers({}, TOPICS)
    with pytest.raises(RefusedError, match="there is no topic 'nope'"):
        brokers.run(call(brokers.cluster()))
    assert {type(request).__name__ for _, request in brokers.asked} == {"MetadataRequest"}


def test_a_refused_change_names_the_topic():
    code = ErrorCode.invalid_partitions
    answers = {
        "CreatePartitions": changed("CreatePartitionsTopicResult", "results", code),
        "DeleteTopics": changed("DeletableTopicResult", "responses", code),
    }
    brokers = Brokers(answers, TOPICS)
    with pytest.raises(RefusedError, match=r"^partitions of topic 't': no"):
        brokers.run(add_partitions(brokers.cluster(), "t", 1))
    with pytest.raises(RefusedError, match=r"^deleting topic 't': no"):
        brokers.run(delete_topic(brokers.cluster(), "t"))


def deleted(by_partition):
    """An answer with the new start of each partition, or an error code. A partition that is not named is left out."""

    def answer(request):
        def result(index):
            found = by_partition[index]
            is_refused = isinstance(found, ErrorCode)
            return part(
                request,
                "DeleteRecordsPartitionResult",
                partition_index=index,
                low_watermark=-1 if is_refused else found,
                error_code=found if is_refused else NONE,
            )

        topics = tuple(
            part(
                request,
                "DeleteRecordsTopicResult",
                name=topic.name,
                partitions=tuple(
                    result(one.partition_index)
                    for one in topic.partitions
                    if one.partition_index in by_partition
                ),
            )
            for topic in request.topics
        )
        return reply(request, topics=topics)

    return answer


def test_records_are_deleted_by_the_leader_of_each_partition():
    brokers = Brokers({"DeleteRecords": deleted({0: 5, 1: 6, 3: 7})}, TOPICS)
    before = {("t", 0): 5, ("t", 1): -1, ("t", 3): 7}
    assert brokers.run(delete_records(brokers.cluster(), before)) == {("t", 0): 5, ("t", 1): 6, ("t", 3): 7}
    asked = {
        (host, one.partition_index, one.offset)
        for host, request in brokers.requests("DeleteRecords")
        for one in request.topics[0].partitions
    }
    assert asked == {("one", 0, 5), ("one", 3, 7), ("two", 1, -1)}


def test_partitions_whose_records_are_deleted_are_not_asked_for_again():
    answers = [deleted({0: 5, 3: ErrorCode.not_leader_or_follower}), deleted({3: 7})]
    brokers = Brokers({"DeleteRecords": answers}, TOPICS)
    assert brokers.run(delete_records(brokers.cluster(), {("t", 0): 5, ("t", 3): 7})) == {
        ("t", 0): 5,
        ("t", 3): 7,
    }
    last = brokers.requests("DeleteRecords")[-1][1]
    assert [one.partition_index for one in last.topics[0].partitions] == [3]


def test_a_refused_partition_and_one_without_an_answer_are_named():
    brokers = Brokers({"DeleteRecords": deleted({0: ErrorCode.offset_out_of_range})}, TOPICS)
    with pytest.raises(RefusedError, match=r"^deleting records of t-0: offset out of range"):
        brokers.run(delete_records(brokers.cluster(), {("t", 0): 99}))
    brokers = Brokers({"DeleteRecords": deleted({})}, TOPICS)
    with pytest.raises(UnavailableError, match="the response of one:9092 does not contain t-0"):
        brokers.run(delete_records(brokers.cluster(), {("t", 0): 99}))
