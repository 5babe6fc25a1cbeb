"""Connections to the brokers of a cluster, and their data directories."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.brokers import (
    every_connection,
    list_brokers,
    log_directories,
    node_connection,
)
from stablelog.client.responses import RetriableError
from stablelog.errors import RefusedError, UnavailableError
from tests.client.core.scripted import NONE, Brokers, part, reply


def directories(*results):
    def answer(request):
        return reply(
            request,
            error_code=NONE,
            results=tuple(
                part(request, "DescribeLogDirsResult", error_code=code, log_dir=path, topics=())
                for code, path in results
            ),
        )

    return answer


def test_each_broker_has_its_address():
    brokers = Brokers()
    assert brokers.run(list_brokers(brokers.cluster())) == {1: "one:9092", 2: "two:9092", 3: "three:9092"}


def test_each_broker_is_asked_for_its_directories_and_those_that_fail_are_left_out():
    answers = [
        directories((NONE, "/a"), (ErrorCode.kafka_storage_error, "/broken")),
        UnavailableError("away"),
        directories(),
    ]
    brokers = Brokers({"DescribeLogDirs": answers})
    assert brokers.run(log_directories(brokers.cluster())) == {1: ["/a"], 3: []}
    assert [host for host, _ in brokers.requests("DescribeLogDirs")] == ["one", "two", "three"]
    assert {request.topics for _, request in brokers.requests("DescribeLogDirs")} == {None}


def test_directories_without_the_given_partitions_are_left_out_by_kafka():
    brokers = Brokers({"DescribeLogDirs": directories((NONE, "/a"))})
    brokers.run(log_directories(brokers.cluster(), [("t", 0), ("t", 2), ("u", 1)]))
    request = brokers.requests("DescribeLogDirs")[0][1]
    assert [(one.topic, one.partitions) for one in request.topics] == [("t", (0, 2)), ("u", (1,))]


def test_a_broker_is_found_by_its_id_or_refused_with_those_that_are_there():
    brokers = Brokers()
    cluster = brokers.cluster()
    assert brokers.run(node_connection(cluster, 3)).host == "three"
    assert brokers.run(node_connection(cluster, 2)).host == "two"
    assert len(brokers.requests("Metadata")) == 1
    with pytest.raises(RefusedError, match=r"^the cluster has no broker 9, only 1, 2, 3$"):
        brokers.run(node_connection(cluster, 9))
    assert len(brokers.requests("Metadata")) == 2  # the broker may be new
    with pytest.raises(RetriableError, match="the cluster's metadata names no broker with id 9"):
        cluster.address_of(9)


def test_every_broker_has_a_connection():
    brokers = Brokers()
    assert [one.host for one in brokers.run(every_connection(brokers.cluster()))] == ["one", "two", "three"]


def test_the_brokers_are_asked_for_only_if_no_metadata_has_named_them():
    brokers = Brokers({"DescribeLogDirs": directories((NONE, "/a"))})
    cluster = brokers.cluster()
    for _ in range(2):
        brokers.run(log_directories(cluster))
    assert len(brokers.requests("Metadata")) == 1
