"""The settings of connections and requests: a part of the table of all settings (`broker.settings.table`)."""

from stablelog.broker.settings.listeners import CONNECTION_COUNTS
from stablelog.broker.settings.setting import BrokerSetting
from stablelog.settings import INT_MAX, LONG_MAX, integer

CONNECTION_SETTINGS: tuple[BrokerSetting, ...] = (
    BrokerSetting(
        "socket.request.max.bytes", integer(1024, INT_MAX), "104857600", "The largest request, in bytes."
    ),
    BrokerSetting(
        "max.connections",
        integer(1, INT_MAX),
        "2000",
        "The number of open connections. The broker closes a further one immediately. For one listener: the "
        "number of its connections, in addition to the limit of the broker.",
        per_listener=True,
        dynamic=True,
    ),
    BrokerSetting(
        "max.connections.per.ip",
        integer(1, INT_MAX),
        str(INT_MAX),
        "The number of open connections from one IP address. The broker closes a further one immediately.",
        dynamic=True,
    ),
    BrokerSetting(
        "max.connections.per.ip.overrides",
        CONNECTION_COUNTS,
        "",
        "The number of open connections of single IP addresses, in place of max.connections.per.ip.",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.max.partitions",
        integer(1, INT_MAX),
        "10000",
        "The number of partitions of all topics together. An idle one needs up to two file descriptors, in a "
        "commit-ordered topic up to four.",
    ),
    BrokerSetting(
        "connections.max.idle.ms",
        integer(1000, LONG_MAX),
        "600000",
        "A connection without a request is closed after this time.",
    ),
    BrokerSetting(
        "queued.max.request.bytes",
        integer(1 << 20, LONG_MAX),
        "268435456",
        "The memory for large requests in flight over all connections, in bytes. Above it the broker stops "
        "reading large requests until it has answered some. No request may be larger. Small requests need at "
        "most 0.6 MiB more for each connection, and about 10 KiB for an idle one.",
    ),
    BrokerSetting(
        "stablelog.request.receive.timeout.ms",
        integer(100, LONG_MAX),
        "30000",
        "The broker closes a connection if a request has not arrived completely after this time.",
    ),
    BrokerSetting(
        "stablelog.max.in.flight.requests",
        integer(1, 10000),
        "100",
        "The number of unanswered requests of one connection. Above this limit the broker stops "
        "reading from the connection.",
    ),
    BrokerSetting(
        "fetch.max.bytes",
        integer(1024, INT_MAX),
        "57671680",
        "The largest response to a fetch, in bytes.",
    ),
    BrokerSetting(
        "max.incremental.fetch.session.cache.slots",
        integer(0, INT_MAX),
        "1000",
        "The number of fetch sessions that the broker keeps.",
    ),
)
