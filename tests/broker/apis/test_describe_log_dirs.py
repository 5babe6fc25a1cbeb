"""DescribeLogDirs: the data directory, and the sizes of the partitions in it."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.wire.api import ApiKey
from tests.broker.desk import DATA, batch, opened
from tests.clients.drivers import Confluent, unique
from tests.declared_apis import APIS


def at_desk(conversation):
    async def run():
        async with opened(topics=("t",), partitions=2) as desk:
            assert (await desk.produce(batch(*[b"x" * 1000] * 10))).error_code is ErrorCode.none
            await conversation(desk)

    asyncio.run(run())


async def described(desk, version, topics=None):
    """The sizes of the partitions in the data directory, by topic and index."""
    answer = await desk.ask_with(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": topics})
    [directory] = answer.results
    assert (directory.error_code, directory.log_dir) == (ErrorCode.none, str(DATA))
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", APIS[ApiKey.DESCRIBE_LOG_DIRS].served_versions)
def test_sizes_are_those_of_the_files_in_the_data_directory(version):
    async def conversation(desk):
        sizes = await described(desk, version)
        disk = desk.broker.disk
        for index in (0, 1):
            home = DATA / f"t-{index}"
            logs = [home / name for name in disk.list_dir(home) if name.endswith(".log")]
            assert sizes["t", index] == sum(map(disk.size, logs))
        assert sizes["t", 0] > 10_000 > sizes["t", 1]

    at_desk(conversation)


def test_what_is_not_there_is_left_out():
    async def conversation(desk):
        asked = [{"topic": name, "partitions": (0, 7)} for name in ("t", "nowhere")]
        assert list(await described(desk, 4, asked)) == [("t", 0)]

    at_desk(conversation)


# -- with the client of the Spark source -----------------------------------------------------------------------------


@pytest.mark.extended
def test_the_client_finds_the_data_directory(stablelog_broker):
    topic = unique("sized")
    Confluent(stablelog_broker.bootstrap).produce(topic, [b"x"])
    with BlockingCluster(stablelog_broker.bootstrap, timeout_s=60) as cluster:
        assert cluster.log_directories([(topic, 0)]) == {
            cluster.leader(topic, 0): [str(stablelog_broker.data)]
        }
