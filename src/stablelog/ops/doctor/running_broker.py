"""Gathers facts about a running broker through its protocol, also about Apache Kafka."""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode

from stablelog.client.blocking.admin import Admin
from stablelog.client.blocking.connection import SocketConnection
from stablelog.client.core.admin.configs import Config, ConfigSource
from stablelog.errors import RefusedError
from stablelog.ops.doctor.facts import BrokerFacts, ShownSetting, Volume, shown_value
from stablelog.wire.api import ApiKey

USABLE_SINCE: Final = 4  # the first version of DescribeLogDirs with total and usable bytes
Result = TypeVar("Result")


def broker_facts(
    bootstrap: str, admin: Admin, connect: Callable[[str], SocketConnection], sources: dict[ConfigSource, str]
) -> BrokerFacts:
    """Ask a running broker for its settings, its topics and its disk.

    Args:
        bootstrap: the addresses of the broker.
        admin: the administration of its cluster.
        connect: opens a connection to one of the addresses.
        sources: the words for the sources of settings.

    Returns:
        The facts. A request that the broker refuses is one of them.

    Raises:
        UnavailableError: the broker does not respond any more.
    """
    refusals: list[str] = []

    def asked(ask: Callable[[], Result], otherwise: Result) -> Result:
        try:
            return ask()
        except RefusedError as refused:
            refusals.append(str(refused))
            return otherwise

    brokers: Mapping[int, str] = asked(admin.brokers.list, {})
    configs: dict[str, Config] = {}
    if brokers:
        configs = asked(lambda: admin.configs.describe("broker", str(min(brokers))), {})
    topics = asked(lambda: admin.topics.list(internal=True), None)
    partitions = [one for topic in (topics or {}).values() for one in topic.partitions.values()]
    return BrokerFacts(
        bootstrap,
        refusals=tuple(refusals),
        brokers=brokers,
        topics=None if topics is None else len(topics),
        partitions=None if topics is None else len(partitions),
        offline=None if topics is None else sum(one.is_offline for one in partitions),
        volume=asked(lambda: _volume(connect(bootstrap)), None),
        settings=tuple(
            ShownSetting(
                one.name,
                shown_value(one.name, one.value, is_secret=one.is_sensitive),
                sources.get(one.source, "unknown"),
            )
            for one in sorted(configs.values())
            if one.source is not ConfigSource.DEFAULT
        ),
    )


def _volume(connection: SocketConnection) -> Volume | None:
    """Return the volume of the broker's first data directory; None if the broker does not tell it to this user.

    The broker reports no usable bytes while it treats the disk as full.
    """
    with connection:
        if not connection.supports_api(ApiKey.DESCRIBE_LOG_DIRS, USABLE_SINCE):
            return None
        results = connection.request(DescribeLogDirsRequest(topics=())).results
    found = next((one for one in results if one.error_code is ErrorCode.none), None)
    if found is None:
        return None
    total, free = (None if size < 0 else size for size in (found.total_bytes, found.usable_bytes))
    return Volume(found.log_dir, total=total, free=free, is_full=found.usable_bytes == 0)
