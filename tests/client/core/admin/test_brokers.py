"""The brokers of a cluster, and their data directories."""

from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.brokers import list_brokers, log_directories
from stablelog.errors import UnavailableError
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
