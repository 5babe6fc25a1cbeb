"""IncrementalAlterConfigs and DescribeConfigs: which settings count, where they come from, and over restarts."""

import asyncio
import random
import uuid

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.settings.table import (
    FIXED_BROKER_SETTINGS,
    SETTINGS,
    TOPIC_SETTINGS,
    UNUSED_TOPIC_SETTINGS,
)
from stablelog.data_directory.settings_file import encode_settings
from stablelog.errors import DamageError, UsageError
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, batch, opened, part

DESCRIBE, ALTER = 32, 44
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OF_TOPIC, DYNAMIC, STATIC, DEFAULT = 1, 2, 4, 5
DYNAMIC_SETTINGS = [setting for setting in SETTINGS if setting.dynamic and setting.topic]
OTHER = {
    "compression.type": "zstd",
    "log.cleanup.policy": "compact",
    "log.message.timestamp.type": "LogAppendTime",
}


def run(conversation):
    return asyncio.run(asyncio.wait_for(conversation(), 100))


async def alter(desk, *changes, resource=(BROKER, "1"), validate_only=False):
    """The error code and message that a client gets for these (operation, name, value)."""
    configs = tuple(
        part(ALTER, 1, "request", "AlterableConfig", name=name, config_operation=operation, value=value)
        for operation, name, value in changes
    )
    kind, name = resource
    asked = part(
        ALTER, 1, "request", "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs
    )
    answer = await desk.ask(ALTER, 1, resources=(asked,), validate_only=validate_only)
    return answer.responses[0].error_code, answer.responses[0].error_message


async def changed(desk, *changes, **keywords):
    assert await alter(desk, *changes, **keywords) == (ErrorCode.none, None)


async def described(desk, setting, resource=(BROKER, "1")):
    """Value and source."""
    kind, name = resource
    asked = part(
        DESCRIBE,
        4,
        "request",
        "DescribeConfigsResource",
        resource_type=kind,
        resource_name=name,
        configuration_keys=(setting,),
    )
    fields = {"resources": (asked,), "include_synonyms": False, "include_documentation": False}
    answer = await desk.ask(DESCRIBE, 4, **fields)
    [found] = answer.results[0].configs
    return found.value, found.config_source


def other_value(setting):
    others = {"0.5": "0.25", "false": "true"}
    return OTHER.get(setting.name) or others.get(setting.default, "123456")


def in_effect(desk, setting, topic):
    """What a partition of the topic has of a setting, as text."""
    value = getattr(desk.broker.partitions.require(topic, 0).config, FIELDS[setting.topic])
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


FIELDS = {
    "segment.bytes": "segment_bytes",
    "segment.ms": "segment_ms",
    "index.interval.bytes": "index_interval_bytes",
    "segment.index.bytes": "segment_index_bytes",
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "cleanup.policy": "cleanup_policy",
    "delete.retention.ms": "delete_retention_ms",
    "min.cleanable.dirty.ratio": "min_cleanable_dirty_ratio",
    "min.compaction.lag.ms": "min_compaction_lag_ms",
    "file.delete.delay.ms": "file_delete_delay_ms",
    "max.message.bytes": "max_message_bytes",
    "compression.type": "compression_type",
    "message.timestamp.type": "message_timestamp_type",
    "message.timestamp.before.max.ms": "message_timestamp_before_ms_max",
    "message.timestamp.after.max.ms": "message_timestamp_after_ms_max",
    "remote.storage.enable": "is_tiered",
    "remote.log.copy.disable": "is_copy_disabled",
    "remote.log.delete.on.disable": "is_deleted_on_disable",
    "local.retention.ms": "local_retention_ms",
    "local.retention.bytes": "local_retention_bytes",
    "stablelog.remote.drop.aborted": "drops_aborted_copies",
    "stablelog.local.drop.aborted": "drops_aborted",
}


@pytest.mark.parametrize("setting", DYNAMIC_SETTINGS, ids=lambda setting: setting.name)
def test_a_dynamic_setting_counts_at_once_and_after_a_restart_until_it_is_deleted(setting):
    value = other_value(setting)
    assert value != setting.default

    async def conversation():
        async with opened(topics=("t",)) as desk:
            own = desk.broker.topic_files.create("own", 1, {setting.topic: setting.default})
            await changed(desk, (SET, setting.name, value))
            await check(desk)
            assert own.configs == {setting.topic: setting.default}
            disk = desk.broker.disk
        async with opened(disk, topics=()) as desk:
            await check(desk)
            desk.broker.topic_files.create("new", 1, {})
            assert in_effect(desk, setting, "new") == value
            await changed(desk, (DELETE, setting.name, None))
            assert await described(desk, setting.name) == (setting.default, DEFAULT)
            assert in_effect(desk, setting, "t") == setting.default
        async with opened(disk, topics=()) as desk:
            assert in_effect(desk, setting, "t") == setting.default

    async def check(desk):
        assert await described(desk, setting.name) == (value, DYNAMIC)
        assert await described(desk, setting.topic, (TOPIC, "t")) == (value, DYNAMIC)
        assert await described(desk, setting.topic, (TOPIC, "own")) == (setting.default, OF_TOPIC)
        assert in_effect(desk, setting, "t") == value
        assert in_effect(desk, setting, "own") == setting.default

    run(conversation)


def test_every_dynamic_setting_is_tested():
    assert sorted(FIELDS) == sorted(setting.topic for setting in DYNAMIC_SETTINGS)
    names = {one.name for one in SETTINGS if one.dynamic and not one.topic}
    assert set(OF_BROKERS) == names - {"max.connections.per.ip.overrides"}


OF_BROKERS = {  # the dynamic settings that no topic has -> how a running broker uses the value
    "producer.id.expiration.ms": lambda desk: (
        desk.broker.partitions.require("t", 0).config.producer_id_expiration_ms
    ),
    "log.cleaner.backoff.ms": lambda desk: desk.broker.compactor.pause_s() * 1000,
    # tests/broker/test_server.py tries those of connections
    "max.connections": lambda desk: desk.broker.config["max.connections"],
    "max.connections.per.ip": lambda desk: desk.broker.config["max.connections.per.ip"],
    "max.connection.creation.rate": lambda desk: desk.broker.config["max.connection.creation.rate"],
}


@pytest.mark.parametrize("name", OF_BROKERS)
def test_a_dynamic_setting_of_the_broker_alone_counts_at_once_and_after_a_restart_until_it_is_deleted(name):
    async def conversation():
        async with opened(topics=("t",)) as desk:
            default = OF_BROKERS[name](desk)
            await changed(desk, (SET, name, "123456"))
            assert await described(desk, name) == ("123456", DYNAMIC)
            assert OF_BROKERS[name](desk) == 123456
        async with opened(desk.broker.disk, topics=()) as desk:
            assert OF_BROKERS[name](desk) == 123456
            await changed(desk, (DELETE, name, None))
            assert OF_BROKERS[name](desk) == default

    run(conversation)


def test_a_topic_may_have_no_cleanup_policy():
    """Kafka's clients take away the only policy of a topic. Then nothing is deleted or compacted."""

    async def conversation():
        async with opened(topics=("t",), log_retention_ms=1) as desk:
            await changed(desk, (SUBTRACT, "cleanup.policy", "delete"), resource=(TOPIC, "t"))
            assert await described(desk, "cleanup.policy", (TOPIC, "t")) == ("", OF_TOPIC)
            assert desk.broker.partitions.require("t", 0).config.cleanup_policy == frozenset()
            await changed(desk, (APPEND, "cleanup.policy", "compact"), resource=(TOPIC, "t"))
            assert await described(desk, "cleanup.policy", (TOPIC, "t")) == ("compact", OF_TOPIC)

    run(conversation)


def test_settings_of_kafka_that_change_nothing_are_kept_and_described():
    async def conversation():
        async with opened(topics=("t",)) as desk:
            for name, setting in UNUSED_TOPIC_SETTINGS.items():
                assert await described(desk, name, (TOPIC, "t")) == (setting.default, DEFAULT)
            await changed(desk, (SET, "min.insync.replicas", "2"), resource=(TOPIC, "t"))
            assert await described(desk, "min.insync.replicas", (TOPIC, "t")) == ("2", OF_TOPIC)
            for name, text in FIXED_BROKER_SETTINGS.items():
                assert await described(desk, name) == (text, DEFAULT)

    run(conversation)


def test_a_dynamic_setting_counts_before_one_that_the_broker_was_started_with():
    async def conversation():
        async with opened(log_retention_ms=1000) as desk:
            assert await described(desk, "log.retention.ms") == ("1000", STATIC)
            assert await described(desk, "retention.ms", (TOPIC, "t")) == ("1000", STATIC)
            await changed(desk, (SET, "log.retention.ms", "-1"))
            assert await described(desk, "log.retention.ms") == ("-1", DYNAMIC)
            disk = desk.broker.disk
        async with opened(disk, log_retention_ms=2000) as desk:
            assert await described(desk, "log.retention.ms") == ("-1", DYNAMIC)
            assert desk.broker.partitions.require("t", 0).config.retention_ms == -1
            await changed(desk, (DELETE, "log.retention.ms", None))
            assert await described(desk, "log.retention.ms") == ("2000", STATIC)
            assert desk.broker.partitions.require("t", 0).config.retention_ms == 2000

    run(conversation)


def test_words_are_added_to_and_taken_from_what_counts():
    async def conversation():
        async with opened(log_cleanup_policy="compact") as desk:
            await changed(desk, (APPEND, "log.cleanup.policy", "delete"))
            assert await described(desk, "log.cleanup.policy") == ("compact,delete", DYNAMIC)
            await changed(desk, (SUBTRACT, "log.cleanup.policy", "compact"))
            assert await described(desk, "log.cleanup.policy") == ("delete", DYNAMIC)

    run(conversation)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((SET, "log.retention.ms", "soon"), "log.retention.ms='soon' is not valid"),
        ((SET, "log.retention.mss", "1"), "did you mean log.retention.ms?"),
        ((DELETE, "log.retention.mss", None), "did you mean log.retention.ms?"),
        ((SET, "num.partitions", "3"), "num.partitions can only be set when the broker starts"),
        ((DELETE, "num.partitions", None), "num.partitions can only be set when the broker starts"),
        (
            (SET, "listener.name.plaintext.max.connections", "3"),
            "listener.name.plaintext.max.connections can only be set when the broker starts",
        ),
        ((SET, "log.retention.ms", None), "the new value is null"),
        ((9, "log.retention.ms", "1"), "operation 9 is unknown"),
    ],
)
def test_of_changes_that_are_refused_none_is_made(change, why):
    async def conversation():
        async with opened() as desk:
            code, message = await alter(desk, (SET, "message.max.bytes", "17"), change)
            assert code is ErrorCode.invalid_request
            assert why in message
            assert await described(desk, "message.max.bytes") == ("1048588", DEFAULT)
            disk = desk.broker.disk
        async with opened(disk) as desk:
            assert await described(desk, "message.max.bytes") == ("1048588", DEFAULT)

    run(conversation)


@pytest.mark.parametrize(
    ("changes", "code", "why"),
    [
        (
            [(SET, "log.cleanup.policy", "delete"), (APPEND, "log.cleanup.policy", "compact")],
            ErrorCode.invalid_request,
            "named twice",
        ),
        ([(APPEND, "log.cleanup.policy", "w," * 513)], ErrorCode.invalid_request, "has 1026 characters"),
        ([(SUBTRACT, "log.cleanup.policy", "w," * 513)], ErrorCode.invalid_request, "has 1026 characters"),
    ],
)
def test_lists_that_would_take_long_to_add_up_are_refused(changes, code, why):
    """Two lists of 20,000 words took 3 s; a request has room for more."""

    async def conversation():
        async with opened() as desk:
            found, message = await alter(desk, (SET, "message.max.bytes", "17"), *changes)
            assert found is code
            assert why in message
            assert len(message) < 200
            assert await described(desk, "message.max.bytes") == ("1048588", DEFAULT)
            assert (await alter(desk, (SUBTRACT, "log.cleanup.policy", "w," * 512)))[0] is ErrorCode.none

    run(conversation)


@pytest.mark.parametrize("resource", [(TOPIC, "t"), (BROKER, "1"), (BROKER, "")])
@pytest.mark.parametrize(
    "name", ["leader.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second"]
)
def test_limits_of_kafka_for_moving_replicas_can_be_deleted_and_not_set(resource, name):
    """`kafka-reassign-partitions --verify` deletes them, whether they were set or not."""

    async def conversation():
        async with opened() as desk:
            await changed(desk, (DELETE, name, None), resource=resource)
            code, _ = await alter(desk, (SET, name, "1"), resource=resource)
            assert code is not ErrorCode.none

    run(conversation)


def test_what_is_only_to_be_checked_is_not_changed():
    async def conversation():
        async with opened() as desk:
            await changed(desk, (SET, "log.retention.ms", "1000"), validate_only=True)
            assert await described(desk, "log.retention.ms") == ("604800000", DEFAULT)
            code, _ = await alter(desk, (SET, "log.retention.ms", "soon"), validate_only=True)
            assert code is ErrorCode.invalid_request

    run(conversation)


def test_settings_that_cannot_be_stored_do_not_count():
    async def conversation():
        async with opened() as desk:
            desk.broker.disk.capacity = 0
            code, message = await alter(desk, (SET, "log.retention.ms", "1000"))
            desk.broker.disk.capacity = None
            assert code is ErrorCode.kafka_storage_error
            assert "cannot be stored" in message
            assert await described(desk, "log.retention.ms") == ("604800000", DEFAULT)
            await changed(desk, (SET, "log.retention.ms", "1000"))

    run(conversation)


def test_a_setting_that_is_changed_while_partitions_are_made_or_recovered_counts_for_them():
    async def conversation():
        async with opened() as desk:
            topics, partitions, files = desk.broker.topics, desk.broker.partitions, desk.broker.topic_files
            new = topics.reserve_new("new", 1, {}, topic_id=uuid.uuid4())
            made = files.make_partitions(new, range(1))
            more = topics.reserve_growth("t", 3)
            added = files.make_partitions(more, range(2, 3))
            closed = files.create("closed", 1, {})
            partitions.of_topic(closed).pop(0).close()
            recovered = files.recover_partition(closed, 0)
            await changed(desk, (SET, "log.retention.ms", "-1"))
            files.publish(new, made)
            topics.end_reservation(new)
            files.publish(more, added)
            topics.end_reservation(more)
            files.publish_partition(closed, recovered)
            for partition in partitions:
                if not topics.get(partition.topic).is_internal:
                    assert partition.config.retention_ms == -1, partition.topic

    run(conversation)


@pytest.mark.parametrize(
    ("content", "error", "why"),
    [
        (b"garbage", DamageError, "broker.json, .* cannot be read"),
        (None, DamageError, "broker.json, .* is missing"),
        (encode_settings({"log.of.tomorrow": "1"}), UsageError, "broker.json .*'log.of.tomorrow'"),
        (encode_settings({"num.partitions": "3"}), UsageError, "broker.json .*num.partitions"),
        (encode_settings({"log.retention.ms": "soon"}), UsageError, "broker.json .*'soon'"),
    ],
    ids=["damaged", "lost", "unknown", "not dynamic", "out of range"],
)
def test_a_broker_does_not_start_without_the_settings_that_it_was_given(content, error, why):
    """With the defaults, retention would delete what was to stay."""

    async def conversation():
        async with opened() as desk:
            await changed(desk, (SET, "log.retention.ms", "-1"))
            disk = desk.broker.disk
        path = DATA / "broker.json"
        if content is None:
            disk.remove(path)
        else:
            disk.write_atomic(path, content)
        steps = disk.steps
        with pytest.raises(error, match=why):
            async with opened(disk):
                pass
        assert disk.steps == steps, "nothing was written"

    run(conversation)


# -- with a real client and a real broker ----------------------------------------------------------------------------


async def is_taken(desk, size):
    """Whether the broker appends a batch with a record of this size."""
    return (await desk.produce(batch(bytes(size)))).error_code is ErrorCode.none


@pytest.mark.parametrize("end", ["stop", "power loss"])
def test_a_setting_of_the_broker_outlives_it(end):
    async def conversation():
        disk = SimDisk()
        async with opened(disk, message_max_bytes=100_000) as desk:
            assert not await is_taken(desk, 200_000)
            await changed(desk, (SET, "message.max.bytes", "300000"))
            assert await is_taken(desk, 200_000)
            crashed = disk.crash(random.Random(0))
        async with opened(disk if end == "stop" else crashed, message_max_bytes=100_000) as desk:
            assert await is_taken(desk, 200_000)
            assert not await is_taken(desk, 400_000)
            await changed(desk, (DELETE, "message.max.bytes", None))
            assert not await is_taken(desk, 200_000)
            code, message = await alter(desk, (SET, "num.partitions", "3"))
            assert code is ErrorCode.invalid_request
            assert "can only be set when the broker starts" in message

    run(conversation)


def test_every_setting_of_a_topic_can_be_described():
    async def conversation():
        async with opened() as desk:
            for name, setting in TOPIC_SETTINGS.items():
                assert (await described(desk, name, (TOPIC, "t")))[0] == setting.default

    run(conversation)
