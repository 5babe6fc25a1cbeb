"""Quotas at a broker: described, altered_values, kept over a restart, and enforced with Kafka's throttle times."""

import asyncio
import errno
import threading
import tracemalloc
from collections import Counter
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.security import client_quotas as broker_quotas
from stablelog.data_directory.registered_file import QUOTAS
from stablelog.errors import DamageError, DiskError
from stablelog.ops.verify import verify_data_directory
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from tests.broker.desk import DATA, batch, opened, produce_fields
from tests.broker.jump import run
from tests.declared_apis import APIS

DESCRIBE, ALTER = ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS
ME = (("client-id", "me"),)
ALL = (("user", None),)
ok = ErrorCode.none


def at_desk(conversation, **settings):
    async def talk():
        async with opened(**settings) as desk:
            await conversation(desk)

    run(talk())


def entry(entity, ops):
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()],
    }


async def alter(desk, *entries, version=1, validate_only=False):
    """The error code and the message for each entry."""
    values = {"entries": [entry(*one) for one in entries], "validate_only": validate_only}
    answer = await desk.ask_with(ALTER, version, values)
    assert [[(e.entity_type, e.entity_name) for e in one.entity] for one in answer.entries] == [
        list(entity) for entity, _ in entries
    ]
    return [(one.error_code, one.error_message) for one in answer.entries]


async def allow(desk, entity=ME, /, **ops):
    assert await alter(desk, (entity, ops)) == [(ok, None)]


async def described(desk, *components, version=1, strict=False):
    names = ("entity_type", "match_type", "match")
    values = {"components": [dict(zip(names, one, strict=True)) for one in components], "strict": strict}
    answer = await desk.ask_with(DESCRIBE, version, values)
    assert answer.error_code is ok
    return {
        tuple((part.entity_type, part.entity_name) for part in one.entity): {
            v.key: v.value for v in one.values
        }
        for one in answer.entries
    }


@pytest.mark.parametrize("version", APIS[ALTER].served_versions)
def test_quotas_are_described_as_they_were_altered_and_after_a_restart(version):
    async def conversation():
        disk = SimDisk()
        pair = (("user", "alice"), ("client-id", None))
        async with opened(disk) as desk:
            assert await described(desk, version=version) == {}
            found = await alter(
                desk,
                (ME, {"producer_byte_rate": 1024.0, "request_percentage": 12.5}),
                (pair, {"consumer_byte_rate": 5.0}),
                ((("ip", None),), {"connection_creation_rate": 7.0}),
                version=version,
            )
            assert found == [(ok, None)] * 3
        async with opened(disk) as desk:
            everything = {
                ME: {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
                pair: {"consumer_byte_rate": 5.0},
                (("ip", None),): {"connection_creation_rate": 7.0},
            }
            assert await described(desk, version=version) == everything
            assert set(await described(desk, ("client-id", 2, None))) == {ME, pair}
            assert set(await described(desk, ("client-id", 2, None), strict=True)) == {ME}
            await alter(desk, (ME, {"request_percentage": None, "producer_byte_rate": 2048.0}))
            await alter(desk, (pair, {"consumer_byte_rate": None}))
            assert await described(desk, ("client-id", 2, None)) == {ME: {"producer_byte_rate": 2048.0}}

    run(conversation())


def test_each_entity_is_changed_or_refused_on_its_own():
    async def conversation(desk):
        found = await alter(
            desk,
            (ME, {"producer_byte_rate": 1.0}),
            ((), {"producer_byte_rate": 1.0}),
            ((("user", "a"),), {"producer_byte_rate": 1.0, "nonsense": 1.0}),
            ((("user", "b"),), {"producer_byte_rate": 1.0}),
            ((("user", "b"),), {"producer_byte_rate": 2.0}),
        )
        codes = [code.name for code, _ in found]
        assert codes == ["none"] + ["invalid_request"] * 4
        assert "nonsense" in found[2][1]
        assert "duplicate entity user 'b'" in found[3][1]
        assert await described(desk) == {ME: {"producer_byte_rate": 1.0}}

    at_desk(conversation)


def test_a_key_that_is_named_twice_is_refused():
    async def conversation(desk):
        twice = entry(ME, {"producer_byte_rate": 1.0})
        twice["ops"] *= 2
        answer = await desk.ask_with(ALTER, 1, {"entries": [twice], "validate_only": False})
        [one] = answer.entries
        assert one.error_code is ErrorCode.invalid_request
        assert "Duplicate quota key 'producer_byte_rate'" in one.error_message
        assert await described(desk) == {}

    at_desk(conversation)


def test_a_validation_changes_nothing():
    async def conversation(desk):
        found = await alter(
            desk,
            (ME, {"producer_byte_rate": 1.0}),
            (ALL, {"producer_byte_rate": -1.0}),
            validate_only=True,
        )
        assert [code.name for code, _ in found] == ["none", "invalid_request"]
        assert await described(desk) == {}
        assert not desk.broker.disk.exists(DATA / QUOTAS.name)
        assert not desk.broker.quotas.limits_clients

    at_desk(conversation)


def test_the_number_of_entities_is_limited(monkeypatch):
    monkeypatch.setattr(broker_quotas, "ENTITY_COUNT_MAX", 3)

    async def conversation(desk):
        found = await alter(desk, *(((("user", str(n)),), {"producer_byte_rate": 1.0}) for n in range(5)))
        assert [code.name for code, _ in found] == ["none"] * 3 + ["policy_violation"] * 2
        await allow(desk, (("user", "0"),), producer_byte_rate=2.0)
        assert len(await described(desk)) == 3

    at_desk(conversation)


def test_a_disk_that_refuses_the_file_refuses_the_change_and_keeps_the_quotas(monkeypatch):
    async def conversation(desk):
        await allow(desk, producer_byte_rate=1e9)

        def refuse(path, _content, **_more):
            raise DiskError(f"writing {path} failed", errno.EIO)

        with monkeypatch.context() as broken:
            broken.setattr(desk.broker.disk, "write_atomic", refuse)
            [(code, why)] = await alter(desk, (ME, {"producer_byte_rate": 1.0}))
        assert code is ErrorCode.kafka_storage_error
        assert "the clients' quotas cannot be stored" in why
        assert await described(desk) == {ME: {"producer_byte_rate": 1e9}}

    at_desk(conversation)


def test_a_lost_file_refuses_the_start_by_its_name():
    async def conversation():
        disk = SimDisk()
        async with opened(disk) as desk:
            await allow(desk, producer_byte_rate=1.0)
        disk.remove(DATA / QUOTAS.name)
        with pytest.raises(DamageError, match=r"quotas.json.*the file is missing"):
            async with opened(disk):
                pass

    run(conversation())


def test_the_file_is_written_in_a_thread_once_it_is_noted(monkeypatch):
    async def conversation(desk):
        await allow(desk, producer_byte_rate=1.0)
        disk, threads = desk.broker.disk, []
        write = disk.write_atomic

        def write_atomic(path, content, **more):
            threads.append(threading.current_thread())
            write(path, content, **more)

        monkeypatch.setattr(disk, "write_atomic", write_atomic)
        await allow(desk, producer_byte_rate=2.0)
        assert threads
        assert threading.main_thread() not in threads

    at_desk(conversation)


# -- enforcement -------------------------------------------------------------------------------------------------


async def produced(desk, size, *, acks=-1):
    """The throttle time of a produce request with a record of this size, in ms."""
    fields = produce_fields(9, "t", 0, batch(bytes(size)), acks=acks)
    answer = await desk.ask(0, 9, **fields)
    if answer is None:
        return None
    [topic] = answer.responses
    assert topic.partition_responses[0].error_code is ok
    return answer.throttle_time // timedelta(milliseconds=1)


async def fetched(desk, offset=0, *, version=11, max_bytes=1 << 20, epoch=-1, session_id=0, wait_ms=0):
    asked = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    answer = await desk.ask_with(
        1,
        version,
        {
            "max_wait": timedelta(milliseconds=wait_ms),
            "min_bytes": 1,
            "max_bytes": max_bytes,
            "session_id": session_id,
            "session_epoch": epoch,
            "rack_id": "",
            "forgotten_topics_data": (),
            "isolation_level": 0,
            "topics": [{"topic": "t", "partitions": [asked]}],
        },
    )
    parts = [part for topic in answer.responses for part in topic.partitions]
    size = sum(len(part.records or b"") for part in parts)
    return size, answer.throttle_time // timedelta(milliseconds=1), answer


def test_without_a_quota_nothing_is_measured():
    async def conversation(desk):
        assert await produced(desk, 100_000) == 0
        assert (await fetched(desk))[1] == 0
        await allow(desk, (("client-id", "other"),), producer_byte_rate=1.0)
        assert await produced(desk, 100_000) == 0
        assert desk.muted_ms == []
        assert not [
            s for s in desk.broker.quotas.samples() if s.name == "stablelog_measured_clients" and s.value
        ]

    at_desk(conversation)


def test_a_producer_above_its_rate_waits_as_long_as_in_kafka():
    async def conversation(desk):
        clock = desk.broker.clock
        await allow(desk, producer_byte_rate=1000.0)
        assert await produced(desk, 4000) == 0
        throttle_ms = await produced(desk, 10_000)
        # 14 KB and two headers, over ten windows of a second: the bytes above 10 KB take their time at 1,000 bytes/s.
        assert 4000 < throttle_ms < 4400
        assert desk.muted_ms == [throttle_ms]
        clock.advance(12_000)
        assert await produced(desk, 4000) == 0
        assert desk.muted_ms == [throttle_ms]

    at_desk(conversation)


def test_a_producer_without_acknowledgements_is_muted():
    async def conversation(desk):
        await allow(desk, producer_byte_rate=1000.0)
        assert await produced(desk, 20_000, acks=0) is None
        assert len(desk.muted_ms) == 1
        assert 10_000 < desk.muted_ms[0] < 10_400

    at_desk(conversation)


def test_the_quota_of_a_user_holds_for_all_its_client_ids_and_one_of_a_client_id_for_each_user():
    async def conversation(desk):
        await allow(desk, (("user", "ANONYMOUS"),), producer_byte_rate=1000.0)
        assert await produced(desk, 9000) == 0
        assert await produced(desk, 9000) > 0
        await allow(desk, (("user", "ANONYMOUS"), ("client-id", "me")), producer_byte_rate=1e9)
        assert await produced(desk, 9000) == 0

    at_desk(conversation)


def test_a_quota_that_is_changed_while_the_client_waits_counts_from_the_next_request():
    async def conversation(desk):
        await allow(desk, producer_byte_rate=100.0)
        before = await produced(desk, 10_000)
        await allow(desk, producer_byte_rate=200.0)
        after = await produced(desk, 1)
        assert before > after > 30_000
        await alter(desk, (ME, {"producer_byte_rate": None}))
        assert await produced(desk, 10_000) == 0

    at_desk(conversation)


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_a_consumer_above_its_rate_gets_an_empty_response_with_the_throttle_time(version):
    async def conversation(desk):
        for _ in range(4):
            await produced(desk, 4000)
        await allow(desk, consumer_byte_rate=1000.0)
        offset, total, throttled = 0, 0, []
        for _ in range(4):
            size, throttle_ms, _ = await fetched(desk, offset, version=version, max_bytes=4000)
            assert (size == 0) == (throttle_ms > 0)
            offset += size > 0
            total += size
            throttled += [throttle_ms] if throttle_ms else []
        assert 8000 < total < 10_000
        assert throttled == desk.muted_ms
        assert 2000 < throttled[0] < 3000
        assert throttled[0] == throttled[-1], "what is not sent is not charged"
        desk.broker.clock.advance(11_000)
        assert (await fetched(desk, offset, version=version))[0] > 0

    at_desk(conversation)


def test_a_batch_that_is_larger_than_the_quota_of_all_windows_is_fetched_at_last():
    async def conversation(desk):
        await produced(desk, 50_000)
        await allow(desk, consumer_byte_rate=1000.0)
        size, throttle_ms, _ = await fetched(desk)
        assert size > 50_000
        assert 40_000 < throttle_ms < 40_500
        size, again_ms, _ = await fetched(desk)
        assert size == 0
        assert again_ms > 40_000

    at_desk(conversation)


def test_a_fetch_waits_for_no_more_bytes_than_its_quota_allows():
    async def conversation(desk):
        await produced(desk, 400)
        await allow(desk, consumer_byte_rate=20.0)
        values = {
            "max_wait": timedelta(seconds=100),
            "min_bytes": 1 << 20,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "rack_id": "",
            "forgotten_topics_data": (),
            "topics": [
                {
                    "topic": "t",
                    "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}],
                }
            ],
        }
        begun = asyncio.get_running_loop().time()
        answer = await desk.ask_with(1, 11, values)
        assert asyncio.get_running_loop().time() - begun < 1
        assert answer.responses[0].partitions[0].records

    at_desk(conversation)


def test_a_session_goes_on_after_a_throttled_fetch_and_misses_nothing():
    async def conversation(desk):
        await produced(desk, 4000)
        _, _, answer = await fetched(desk, epoch=0)
        session_id, epoch = answer.session_id, 1
        assert session_id
        await allow(desk, consumer_byte_rate=100.0)
        await fetched(desk)  # above the quota of all windows
        size, throttle_ms, answer = await fetched(desk, 0, epoch=epoch, session_id=session_id)
        assert (size, answer.responses, answer.session_id) == (0, (), session_id)
        assert throttle_ms > 0
        desk.broker.clock.advance(20_000)
        size, throttle_ms, answer = await fetched(desk, 0, epoch=epoch + 1, session_id=session_id)
        assert size > 4000
        assert answer.error_code is ok
        before = len(desk.broker.fetch_sessions)
        size, throttle_ms, answer = await fetched(desk, epoch=0)
        assert (size, answer.session_id) == (0, 0), "a session whose partitions are not told does not begin"
        assert len(desk.broker.fetch_sessions) == before

    at_desk(conversation)


def create_fields(name, partitions=1, *, validate_only=False):
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    return {"topics": [topic], "timeout": timedelta(seconds=1), "validate_only": validate_only}


async def created(desk, name, partitions=1, *, version=7, **more):
    answer = await desk.ask_with(ApiKey.CREATE_TOPICS, version, create_fields(name, partitions, **more))
    return answer.topics[0].error_code.name, answer.throttle_time // timedelta(milliseconds=1)


EXCEEDED = "throttling_quota_exceeded"


def test_changes_of_partitions_above_the_rate_are_refused_until_the_bucket_is_not_below_zero():
    async def conversation(desk):
        await allow(desk, controller_mutation_rate=2.0)
        assert await created(desk, "a", 30) == ("none", 0), (
            "a burst of 22 is there, and may be overdrawn once"
        )
        assert await created(desk, "b") == (EXCEEDED, 4000)
        assert "b" not in desk.broker.topics
        values = {
            "topics": [{"name": "a", "count": 31, "assignments": None}],
            "timeout": timedelta(seconds=1),
            "validate_only": False,
        }
        answer = await desk.ask_with(ApiKey.CREATE_PARTITIONS, 3, values)
        assert (answer.results[0].error_code.name, answer.throttle_time) == (EXCEEDED, timedelta(seconds=4))
        values = {
            "topics": [{"name": "a", "topic_id": None}],
            "topic_names": ("a",),
            "timeout": timedelta(seconds=1),
        }
        answer = await desk.ask_with(ApiKey.DELETE_TOPICS, 6, values)
        assert (answer.responses[0].error_code.name, answer.throttle_time) == (EXCEEDED, timedelta(seconds=4))
        assert desk.muted_ms == [4000] * 3
        assert await created(desk, "a") == ("topic_already_exists", 0), "other refusals are not charged"
        desk.broker.clock.advance(4000)
        answer = await desk.ask_with(ApiKey.DELETE_TOPICS, 6, values)
        assert (answer.responses[0].error_code.name, answer.throttle_time) == ("none", timedelta(0))
        assert await created(desk, "b") == (EXCEEDED, 15_000), "the deletion was charged"

    at_desk(conversation, partitions=1)


@pytest.mark.parametrize("version", [4, 12])
def test_topics_that_a_metadata_request_creates_are_charged(version):
    async def conversation(desk):
        await allow(desk, controller_mutation_rate=2.0)
        names = [*(f"auto-{number}" for number in range(100)), "not valid!"]

        async def asked():
            values = {
                "topics": [{"name": name, "topic_id": None} for name in names],
                "allow_auto_topic_creation": True,
                "include_topic_authorized_operations": False,
                "include_cluster_authorized_operations": False,
            }
            answer = await desk.ask_with(ApiKey.METADATA, version, values)
            codes = Counter(topic.error_code.name for topic in answer.topics)
            return codes, answer.throttle_time // timedelta(milliseconds=1)

        codes, throttle_ms = await asked()
        assert codes == {"none": 23, "leader_not_available": 77, "invalid_topic_exception": 1}
        assert throttle_ms == 500, "clients ask again after that time"
        assert sum(topic.name.startswith("auto-") for topic in desk.broker.topics) == 23
        desk.broker.clock.advance(500)
        codes, _ = await asked()
        assert codes["none"] == 24

    at_desk(conversation, partitions=1, topics=())


@pytest.mark.parametrize("version", [5, 3])
def test_a_client_that_does_not_know_the_refusal_waits_instead(version):
    async def conversation(desk):
        await allow(desk, controller_mutation_rate=2.0)
        assert await created(desk, "a", 30, version=version) == ("none", 4000)
        assert await created(desk, "b", version=version) == ("none", 4500)
        assert desk.muted_ms == [4000, 4500]

    at_desk(conversation)


def test_the_processor_time_of_requests_is_limited_in_every_response_that_has_the_field():
    async def conversation(desk):
        await allow(desk, ALL, request_percentage=0.0001)
        answer = await desk.ask(ApiKey.API_VERSIONS, 0)
        answer = await desk.ask_with(ApiKey.FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
        assert answer.throttle_time == timedelta(seconds=1), "at most a window, as in Kafka"
        assert await produced(desk, 10) == 1000
        size, throttle_ms, _ = await fetched(desk)
        assert (size, throttle_ms) == (0, 1000)
        assert desk.muted_ms == [1000] * 4
        await alter(desk, (ALL, {"request_percentage": None}))
        desk.muted_ms.clear()
        assert await produced(desk, 10) == 0
        assert desk.muted_ms == []

    at_desk(conversation)


def test_a_long_poll_is_not_charged_for_the_time_that_it_waits():
    async def conversation(desk):
        await allow(desk, request_percentage=100.0)
        for _ in range(3):
            waiting = asyncio.ensure_future(fetched(desk, wait_ms=60_000))
            for _ in range(20):
                await asyncio.sleep(0)
            sum(range(2_000_000))  # another task's work
            _, throttle_ms, _ = await waiting
            assert throttle_ms == 0
        key = broker_quotas.QuotaKey.REQUEST_PERCENTAGE
        rate = desk.broker.quotas.client_rate(key, ("", "me"))
        assert 0 < rate.total(desk.broker.now_ms()) < 10

    at_desk(conversation)


def test_throttled_requests_are_counted():
    async def conversation(desk):
        await allow(desk, producer_byte_rate=1000.0)
        ms = await produced(desk, 20_000)
        found = {(s.name, *s.labels): s.value for s in desk.broker.quotas.samples()}
        assert found["stablelog_throttled", "producer_byte_rate"] == 1
        assert found["stablelog_throttle_seconds", "producer_byte_rate"] == ms / 1000
        assert found["stablelog_measured_clients",] == 1

    at_desk(conversation)


def test_new_connections_of_an_address_above_its_quota_are_closed_after_a_delay_and_not_charged():
    async def conversation(desk):
        quotas, clock = desk.broker.quotas, desk.broker.clock
        await allow(desk, (("ip", None),), connection_creation_rate=2.0)
        await allow(desk, (("ip", "10.0.0.9"),), connection_creation_rate=100.0)
        found = [quotas.count_connection("10.0.0.1") for _ in range(30)]
        assert [one.delay_ms for one in found[:20]] == [0] * 20
        assert all(
            0 < one.delay_ms <= 1000 and "more than 2 connections" in one.why_closed for one in found[20:]
        )
        assert all(quotas.count_connection("10.0.0.9").delay_ms == 0 for _ in range(1000))
        assert quotas.count_connection("10.0.0.2").delay_ms == 0
        clock.advance(11_000)
        assert quotas.count_connection("10.0.0.1").delay_ms == 0

    at_desk(conversation)


def test_new_connections_above_the_rate_of_the_broker_are_served_after_a_delay():
    async def conversation(desk):
        found = [desk.broker.quotas.count_connection(f"10.0.0.{n}") for n in range(30)]
        assert [one.delay_ms for one in found[:20]] == [0] * 20
        assert all(0 < one.delay_ms <= 1000 and one.why_closed is None for one in found[20:])

    at_desk(conversation, max_connection_creation_rate=2)


def test_addresses_that_come_and_go_take_no_memory():
    async def conversation(desk):
        await allow(desk, (("ip", None),), connection_creation_rate=2.0)
        for n in range(20_000):
            desk.broker.quotas.count_connection(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
        [measured] = [s.value for s in desk.broker.quotas.samples() if s.name == "stablelog_measured_clients"]
        assert measured <= 10_000

    at_desk(conversation)


@pytest.mark.extended
def test_a_client_with_a_new_client_id_in_each_request_takes_no_memory():
    async def conversation(desk):
        await allow(desk, (("client-id", None),), producer_byte_rate=1000.0, controller_mutation_rate=1.0)
        quotas = desk.broker.quotas
        long = "x" * 1000
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for n in range(40_000):
                throttle = quotas.begin_request("ANONYMOUS", f"{long}{n}", 100, None, lambda _ms: None)
                throttle.charge_produce()
                throttle.charge_partitions(1, is_strict=True)
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 30_000_000
        [measured] = [s.value for s in quotas.samples() if s.name == "stablelog_measured_clients"]
        assert measured <= 20_000
        desk.broker.clock.advance(11_000)
        await produced(desk, 1)
        [measured] = [s.value for s in quotas.samples() if s.name == "stablelog_measured_clients"]
        assert measured <= 10_001, "idle clients are forgotten"

    at_desk(conversation)


def test_verify_names_the_file_if_it_is_damaged_or_lost():
    def found(disk):
        findings = [str(finding) for finding in verify_data_directory(disk, DATA)]
        return [text for text in findings if QUOTAS.name in text]

    async def conversation():
        disk = SimDisk()
        async with opened(disk) as desk:
            await allow(desk, producer_byte_rate=1.0)
        assert found(disk) == []
        disk.write_atomic(DATA / QUOTAS.name, b"x")
        assert any("CRC" in text for text in found(disk))
        disk.remove(DATA / QUOTAS.name)
        assert any("the file is missing" in text for text in found(disk))

    run(conversation())
