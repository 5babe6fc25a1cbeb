"""The topics of a data directory, without a broker."""

from types import MappingProxyType, SimpleNamespace

from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.broker.topics.topic_list import TopicList


def topic_files(disk, directory, *, config=None, reserve=None, clean=True, on_failure=lambda *_: None):
    """The topics of a data directory, as a start reads them. No partition is open yet."""
    config = config or BrokerConfig({})
    topics = TopicList(config)
    runtime = SimpleNamespace(
        disk=disk,
        directory=directory,
        reserve=reserve or DiskReserve(disk, directory, 0),
        clock=SimpleNamespace(now_ms=lambda: 0),
    )
    files = TopicFiles(topics, OpenPartitions(topics, config, on_failure), runtime)
    files.load(clean=clean)
    return files


def create(files, name, configs=MappingProxyType({})):
    """Create a topic with one partition. Returns the partition."""
    files.create(name, 1, configs)
    return files.partitions.require(name, 0)
