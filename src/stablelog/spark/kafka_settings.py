"""Settings of Kafka's clients that Spark's Kafka connector accepts and that the data source does not use.

A job can change from the connector to stablelog and keep its options. A setting that cannot change which records are
read or written is accepted: the source logs one warning with the reason. A setting that would change them is refused:
the job would do something else than its options say. The settings of TLS and SASL are those of the native client, with
the prefix `kafka.`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from stablelog.client.core.security import PREFIXES, SecuritySettings, read_security_settings
from stablelog.errors import UsageError

PREFIX: Final = "kafka."
SECURITY_PREFIXES: Final = tuple(PREFIX + one for one in PREFIXES)
SHOWN_KEY: Final = "kafka.ssl.keystore.key"
ENCRYPTED: Final = "ENCRYPTED"  # stands in the first lines of each encrypted key in PEM format
_GROUP = "the source uses no consumer group"
_RETRIES = "`kafka.request.timeout.ms` limits the retries"
_WAIT = "`kafka.request.timeout.ms` limits the wait"
_FETCHES = "the source chooses the size of each fetch"
_CONNECTION = "the client chooses this for its connections"
_BATCHES = "the sink fills record batches from Spark's batches"
_METRICS = "the client has no metrics of Kafka's clients"
WITHOUT_EFFECT: Final[dict[str, str]] = {
    "groupIdPrefix": _GROUP,
    "kafka.group.id": _GROUP,
    "kafka.group.instance.id": _GROUP,
    "kafka.group.protocol": _GROUP,
    "kafka.heartbeat.interval.ms": _GROUP,
    "kafka.session.timeout.ms": _GROUP,
    "kafka.max.poll.interval.ms": _GROUP,
    "kafka.partition.assignment.strategy": _GROUP,
    "kafka.auto.commit.interval.ms": _GROUP,
    "kafkaConsumer.pollTimeoutMs": _WAIT,
    "kafka.default.api.timeout.ms": _WAIT,
    "kafka.max.block.ms": _WAIT,
    "kafka.delivery.timeout.ms": _WAIT,
    "kafka.socket.connection.setup.timeout.ms": _WAIT,
    "kafka.socket.connection.setup.timeout.max.ms": _WAIT,
    "fetchOffset.numRetries": _RETRIES,
    "fetchOffset.retryIntervalMs": _RETRIES,
    "kafka.retries": _RETRIES,
    "kafka.retry.backoff.ms": _RETRIES,
    "kafka.retry.backoff.max.ms": _RETRIES,
    "kafka.reconnect.backoff.ms": _RETRIES,
    "kafka.reconnect.backoff.max.ms": _RETRIES,
    "kafka.fetch.max.bytes": _FETCHES,
    "kafka.fetch.min.bytes": _FETCHES,
    "kafka.fetch.max.wait.ms": _FETCHES,
    "kafka.max.partition.fetch.bytes": _FETCHES,
    "kafka.max.poll.records": "the source reads batches and does not poll records",
    "kafka.allow.auto.create.topics": "a read creates no topic",
    "kafka.client.rack": "the source fetches from the leader",
    "kafka.client.dns.lookup": _CONNECTION,
    "kafka.connections.max.idle.ms": _CONNECTION,
    "kafka.receive.buffer.bytes": _CONNECTION,
    "kafka.send.buffer.bytes": _CONNECTION,
    "kafka.metadata.max.age.ms": _CONNECTION,
    "kafka.metadata.max.idle.ms": _CONNECTION,
    "kafka.acks": "every acknowledged record is durable",
    "kafka.enable.idempotence": "the sink writes in transactions, which are idempotent",
    "kafka.max.in.flight.requests.per.connection": "the sink keeps the order of the records in any case",
    "kafka.linger.ms": _BATCHES,
    "kafka.buffer.memory": _BATCHES,
    "kafka.batch.size": "`batchBytes` sets the size of a record batch",
    "kafka.max.request.size": "`batchBytes` sets the size of a record batch",
    "kafka.metric.reporters": _METRICS,
    "kafka.metrics.num.samples": _METRICS,
    "kafka.metrics.recording.level": _METRICS,
    "kafka.metrics.sample.window.ms": _METRICS,
    "kafka.enable.metrics.push": _METRICS,
    "kafka.auto.include.jmx.reporter": _METRICS,
}
# Setting -> what the user must do instead.
REFUSED: Final[dict[str, str]] = {
    "kafka.auto.offset.reset": "give startingOffsets, and failOnDataLoss for records that are gone",
    "kafka.enable.auto.commit": "a stream's offsets are in its checkpoint; commitGroup commits them to a consumer group",
    "kafka.check.crcs": "give checkCrc",
    "kafka.transactional.id": "the sink names its transactions; give txnAppId and txnVersion for a repeated batch write",
    "kafka.transaction.timeout.ms": "give transactionTimeout",
    "kafka.partitioner.class": "the rows of a write choose their partition in the column partition",
    "kafka.interceptor.classes": "there are no interceptors: leave it out",
    "kafka.key.deserializer": "key is binary: cast the column",
    "kafka.value.deserializer": "value is binary: cast the column",
    "kafka.key.serializer": "key is binary or string: cast the column",
    "kafka.value.serializer": "value is binary or string: cast the column",
}
WARNED: set[str] = set()


def is_security_setting(name: str) -> bool:
    """Return whether an option is a setting of TLS or SASL. `name` is the option's name in lower case."""
    return name.startswith(SECURITY_PREFIXES)


def security_settings(given: Mapping[str, str]) -> SecuritySettings:
    """Check the settings of TLS and SASL, and return them in the form that the client of the brokers takes. The driver
    and the tasks check them, because each of these processes reads the files that the settings name.

    Args:
        given: the options that are security settings; names in lower case.

    Raises:
        UsageError: a setting is unknown, missing or not valid. The message contains no secret.
    """
    return read_security_settings({name.removeprefix(PREFIX): text for name, text in given.items()}, PREFIX)


def refuse_shown_key(given: Mapping[str, str]) -> None:
    """Refuse a private key that Spark would show: in plans, in its user interface and in its event log. Spark hides an
    option if its name or its value contains `password`, `secret` or `token`, so passwords and login modules are hidden.

    Args:
        given: all options of a read or write; names in any case.

    Raises:
        UsageError: the options contain a private key that is not encrypted.
    """
    for name, text in given.items():
        if name.lower() == SHOWN_KEY and text.strip() and ENCRYPTED not in text:
            raise UsageError(
                f"{SHOWN_KEY} is not encrypted, and Spark would show it in plans and in its event log: give a file as "
                "kafka.ssl.keystore.location, or an encrypted key with kafka.ssl.key.password"
            )


def check_kafka_setting(name: str) -> None:
    """Check the name of an option, in lower case.

    Raises:
        UsageError: the option is a setting of Kafka's clients that the data source does not support, although it would
            change which records are read or written.
    """
    if name in REFUSED:
        raise UsageError(f"stablelog has no option {name}: {REFUSED[name]}")


def unwarned(names: Iterable[str]) -> list[str]:
    """Return those of the given options that have no effect and of which this process has not warned yet. The caller
    logs the warning: the next call leaves these options out.

    Args:
        names: the names of all options of a read or write, in any case.

    Returns:
        For each option, a text with its name and the reason.
    """
    reasons = {name.lower(): (name, why) for name, why in WITHOUT_EFFECT.items()}
    found = sorted({name.lower() for name in names} & reasons.keys() - WARNED)
    WARNED.update(found)
    return [f"{reasons[name][0]} ({reasons[name][1].replace('`', '')})" for name in found]
