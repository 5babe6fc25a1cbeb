"""What /metrics says, over HTTP: each metric changes as docs/reference/metrics.md says, and no scrape fails beside other work."""

import asyncio
import contextlib
import itertools
import threading
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from prometheus_client.parser import text_string_to_metric_families

import stablelog
from stablelog.broker.loop.tasks import Scope
from stablelog.broker.monitoring import metrics
from stablelog.broker.monitoring.health import HealthFacts
from stablelog.errors import UnavailableError
from stablelog.security.quotas.entities import Alteration, entity_of
from stablelog.wire.acls import AclBinding, Operation, Pattern, Permission, ResourceType
from stablelog.wire.api import ApiKey
from tests.broker.desk import batch, delete_topic, opened, part
from tests.broker.security.test_logging_in import Client, on_desk
from tests.broker.tiering.desk import copy, log_of, tiered, write_segments
from tests.clients.drivers import unique
from tests.clients.proxy import Peer
from tests.waiting import until

FETCH = 1
T_0 = {"topic": "t", "partition": "0"}


def scrape(port):
    """Status and body of a scrape."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=60)) as scraper:
        scraper.request("GET", "/metrics")
        answer = scraper.getresponse()
        return answer.status, answer.read().decode()


# -- scrapes beside other work -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served(**settings):
    async with opened(stablelog_metrics_port=0, **settings) as desk:
        desk.broker.metrics.serve("127.0.0.1", 0, lambda: HealthFacts(0, 0, 0, is_disk_full=False))
        try:
            yield desk
        finally:
            await asyncio.to_thread(desk.broker.metrics.close)


@pytest.mark.extended
def test_scrapes_hold_while_producers_come_and_go():
    """The producers of a partition change all the time, and so do partitions and fetch sessions."""

    async def conversation():
        async with served(topics=("t",), partitions=1) as desk:
            broker = desk.broker
            log = broker.partitions.require("t", 0)
            ids = itertools.count()
            answered = []

            def write():
                log.append(
                    batch(b"x", producer=(next(ids), 0), sequence=0, transactional=False),
                    now_ms=broker.now_ms(),
                )

            for _ in range(5000):
                write()

            async def churn():
                while len(answered) < 10:
                    for _ in range(50):
                        write()
                    name = unique("passing")
                    broker.topic_files.create(name, 1, {})
                    delete_topic(broker.topic_files, name)
                    await asyncio.sleep(0)

            async def ask():
                while len(answered) < 10:
                    answered.append(await asyncio.to_thread(scrape, broker.metrics.port))

            await asyncio.gather(churn(), ask())
            assert [status for status, _ in answered] == [200] * 10

    asyncio.run(conversation())


@pytest.mark.extended
def test_the_broker_is_read_on_its_loop_only():
    async def conversation():
        async with served() as desk:
            readers = set()

            def watched():
                readers.add(threading.get_ident())
                return ()

            desk.broker.metrics.register_source(watched)
            await asyncio.to_thread(scrape, desk.broker.metrics.port)
            assert readers == {threading.get_ident()}

    asyncio.run(conversation())


@pytest.mark.extended
def test_a_scrape_that_the_loop_does_not_answer_in_time_says_so(monkeypatch):
    monkeypatch.setattr(metrics, "SAMPLE_TIMEOUT_S", 0.05)

    async def conversation():
        async with served() as desk:
            port, told = desk.broker.metrics.port, []
            asking = threading.Thread(target=lambda: told.append(scrape(port)))
            asking.start()
            asking.join(60)  # on the loop: it stands still until the scrape is answered
            assert told == [(503, "the broker has not returned its metrics for 0.05 s\n")]
            status, _ = await asyncio.to_thread(scrape, port)
            assert status == 200, "it goes on"

    asyncio.run(conversation())


# -- what each metric says ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(module_path):
    data = module_path / "data"
    with stablelog.serve(data, stablelog_metrics_port=0) as started:
        yield started


@pytest.fixture(scope="module")
def port(broker):
    return int(
        broker.log_tail(1000).partition("metrics are served at http://127.0.0.1:")[2].partition("/")[0]
    )


@pytest.fixture
def told(port):
    return teller(port)


def teller(port):
    def value(name, **labels):
        """The value of a metric; None if there is no such."""
        status, body = scrape(port)
        assert status == 200
        for family in text_string_to_metric_families(body):
            for sample in family.samples:
                if sample.name in (name, f"{name}_total") and sample.labels == labels:
                    return sample.value
        return None

    return value


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def write(broker, topic, *values):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def fetch_fields(topic, *, wait=timedelta(0), min_bytes=0, session_id=0, session_epoch=-1):
    where = {"partition": 0, "fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
    partition = part(FETCH, 7, "request", "FetchPartition", **where)
    return {
        "max_wait": wait,
        "min_bytes": min_bytes,
        "max_bytes": 1 << 20,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": (part(FETCH, 7, "request", "FetchTopic", topic=topic, partitions=(partition,)),),
        "forgotten_topics_data": (),
    }


def with_metrics(conversation, **settings):
    """Run a conversation with a broker that serves its metrics, and with a function that reads the value of one."""

    async def run():
        async with served(topics=("t",), partitions=1, **settings) as desk:
            read = teller(desk.broker.metrics.port)

            async def value(name, **labels):
                return await asyncio.to_thread(lambda: read(name, **labels))

            await conversation(desk, value)

    asyncio.run(run())


async def fetch(desk, **session):
    answer = await desk.ask(FETCH, 7, **fetch_fields("t", **session))
    assert answer.error_code is ErrorCode.none
    return answer


def test_requests_are_counted_by_api():
    async def conversation(desk, told):
        assert await told("stablelog_requests", api="fetch") is None
        for _ in range(3):
            await fetch(desk)
        assert await told("stablelog_requests", api="fetch") == 3

    with_metrics(conversation)


def test_a_request_is_counted_when_it_is_answered():
    async def conversation():
        async with opened(topics=("t",)) as desk:

            async def counted():
                return {
                    sample.labels: sample.value
                    for sample in await desk.broker.metrics.read_samples()
                    if sample.name == "stablelog_requests"
                }

            poll = asyncio.create_task(
                desk.ask(FETCH, 7, **fetch_fields("t", wait=timedelta(minutes=10), min_bytes=1))
            )
            for _ in range(10):
                await asyncio.sleep(0)
            assert not poll.done()
            assert await counted() == {}
            await desk.produce(batch(b"x"))
            assert (await poll).error_code is ErrorCode.none
            assert await counted() == {("fetch",): 1, ("produce",): 1}

    asyncio.run(conversation())


def test_appended_and_fetched_bytes_and_the_size_of_the_log_are_those_of_the_batches():
    async def conversation(desk, told):
        data = batch(b"x" * 1000)
        assert (await desk.produce(data)).error_code is ErrorCode.none
        assert await told("stablelog_log_size_bytes", **T_0) == len(data)
        assert await told("stablelog_appended_bytes") == len(data)
        answer = await fetch(desk)
        assert len(answer.responses[0].partitions[0].records) == len(data)
        assert await told("stablelog_fetched_bytes") == len(data)

    with_metrics(conversation)


def test_a_round_of_flush_is_counted():
    async def conversation(desk, told):
        before = await told("stablelog_flush_rounds")
        await desk.produce(batch(b"x"))
        assert await told("stablelog_flush_rounds") > before

    with_metrics(conversation)


@pytest.mark.extended
def test_acls_and_denied_operations_are_counted():
    async def conversation():
        secured = {
            "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super_users": "User:root",
        }
        async with served(**secured) as desk:
            told = teller(desk.broker.metrics.port)
            rule = AclBinding(
                Pattern(ResourceType.TOPIC, "t"), "User:a", "*", Operation.READ, Permission.ALLOW
            )
            desk.broker.acls.authorizer.change(added=[rule])
            await desk.produce(batch(b"x"))
            assert await asyncio.to_thread(lambda: told("stablelog_acls")) == 1
            assert await asyncio.to_thread(lambda: told("stablelog_denied_operations")) == 1

    asyncio.run(conversation())


@pytest.mark.extended
def test_a_full_disk_is_told_until_it_has_room(told):
    async def conversation():
        async with served() as desk:
            told = teller(desk.broker.metrics.port)
            for is_full in (True, False):
                desk.broker.reserve.set_waiting(told, waits=is_full)
                assert await asyncio.to_thread(lambda: told("stablelog_disk_full")) == is_full

    assert told("stablelog_disk_full") == 0
    asyncio.run(conversation())


@pytest.mark.extended
def test_partitions_are_counted_and_those_that_have_failed():
    """tests/broker/topics/test_partition_state.py has a partition in each state."""

    async def conversation():
        async with served(topics=("t",), partitions=2) as desk:
            told = teller(desk.broker.metrics.port)
            own = sum(topic.partition_count for topic in desk.broker.topics if topic.is_internal)
            desk.broker.partitions.require("t", 0).availability.mark_failed(
                UnavailableError("the disk fails")
            )
            assert await asyncio.to_thread(lambda: told("stablelog_partitions")) == own + 2
            assert await asyncio.to_thread(lambda: told("stablelog_offline_partitions")) == 1
            assert await asyncio.to_thread(lambda: told("stablelog_opening_partitions")) == 0

    asyncio.run(conversation())


@pytest.mark.extended
def test_unexpected_errors_are_counted_by_where_they_were_raised():
    async def conversation():
        async with served() as desk:
            told = teller(desk.broker.metrics.port)
            for _ in range(2):
                scope = Scope("nothing fails", lambda _why: None)
                desk.broker.tasks.report_unexpected("some work", scope, RuntimeError("on purpose"))
            count = await asyncio.to_thread(lambda: told("stablelog_unexpected_errors", where="some work"))
            assert count == 2

    asyncio.run(conversation())


def test_what_the_scrub_reads_and_finds_is_counted():
    """A pass begins a minute after the start, and the one before it: `tests/broker/upkeep/test_proofs.py` makes them."""

    async def conversation(_desk, told):
        assert await told("stablelog_scrubbed_bytes") == 0
        assert await told("stablelog_damaged_batches", **T_0) == 0

    with_metrics(conversation)


def test_throttled_requests_and_their_clients_are_counted():
    async def conversation(desk, told):
        quota = Alteration(entity_of([("client-id", "me")]), {"producer_byte_rate": 10_000.0})
        assert await desk.broker.quotas.alter_quotas([quota], validate_only=False) == [None]
        assert (await desk.produce(batch(bytes(110_000)))).error_code is ErrorCode.none
        assert await told("stablelog_throttled", quota="producer_byte_rate") == 1
        assert 1.0 <= await told("stablelog_throttle_seconds", quota="producer_byte_rate") < 2.0
        assert await told("stablelog_measured_clients") == 1

    with_metrics(conversation)


@pytest.mark.extended
def test_open_connections_are_counted(told, broker):
    """There are some others, of the clients of other tests, which come and go."""
    with contextlib.ExitStack() as peers:
        for _ in range(60):
            peers.enter_context(contextlib.closing(Peer(broker.port)))
        until(lambda: 60 <= told("stablelog_connections") < 120, "all of them are open")
    until(lambda: 0 <= told("stablelog_connections") < 60, "they are closed")


def test_logins_are_counted():
    async def conversation(desk):
        for password in ("carol-secret", "wrong", "wrong"):
            await Client(desk).log_in("PLAIN", "carol", password)
        samples = await desk.broker.metrics.read_samples()

        def told(name, **labels):
            return next(one.value for one in samples if one[:2] == (name, tuple(labels.values())))

        assert told("stablelog_logins", mechanism="PLAIN", result="success") == 1
        assert told("stablelog_logins", mechanism="PLAIN", result="failure") == 2

    on_desk(conversation)


def test_fetch_sessions_are_counted_while_they_are_kept():
    async def conversation(desk, told):
        session_id = (await fetch(desk, session_epoch=0)).session_id
        assert session_id
        assert await told("stablelog_fetch_sessions") == 1
        await fetch(desk, session_id=session_id, session_epoch=-1)
        assert await told("stablelog_fetch_sessions") == 0

    with_metrics(conversation)


def test_offsets_of_a_partition_follow_writes_and_deletions():
    async def conversation(desk, told):
        assert await told("stablelog_high_watermark", **T_0) == 0
        await desk.produce(batch(b"1", b"2", b"3"))
        assert await told("stablelog_high_watermark", **T_0) == 3
        assert await told("stablelog_last_stable_offset", **T_0) == 3
        assert await told("stablelog_log_start_offset", **T_0) == 0
        wanted = {"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}
        values = {"topics": [wanted], "timeout": timedelta(seconds=60)}
        answer = await desk.ask_with(ApiKey.DELETE_RECORDS, 2, values)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        assert await told("stablelog_log_start_offset", **T_0) == 2

    with_metrics(conversation)


@pytest.mark.extended
def test_an_open_transaction_is_seen_until_its_commit_is(told, admin, broker):
    group, topic = unique("group"), unique("grouped")
    admin.create_topics([NewTopic(topic, 1, 1, config={"stablelog.group": group})])[topic].result(60)
    labels = {"topic": topic, "partition": "0"}
    settings = {"transactional.id": f"{group}/me", "transaction.timeout.ms": 600_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    write(broker, topic, b"outside")
    remembered = told("stablelog_producer_ids", **labels)
    assert told("stablelog_oldest_open_transaction_seconds", **labels) == 0
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"1", partition=0)
    producer.produce(topic, b"2", partition=0)
    assert producer.flush(60) == 0
    assert told("stablelog_high_watermark", **labels) == 3
    assert told("stablelog_last_stable_offset", **labels) == 1
    assert told("stablelog_last_stable_offset_lag", **labels) == 2
    assert told("stablelog_producer_ids", **labels) == remembered + 1
    age_s = until(lambda: told("stablelog_oldest_open_transaction_seconds", **labels), "it grows older")
    until(lambda: told("stablelog_oldest_open_transaction_seconds", **labels) > age_s, "and older")
    assert told("stablelog_last_commit_sequence", group=group) == 0
    producer.commit_transaction(60)
    assert told("stablelog_last_commit_sequence", group=group) == 1
    until(lambda: told("stablelog_resolved_commit_sequence", group=group) == 1, "its marker is durable")
    assert told("stablelog_oldest_open_transaction_seconds", **labels) == 0
    until(lambda: told("stablelog_last_stable_offset", **labels) == 4, "readers see it")
    assert told("stablelog_last_stable_offset_lag", **labels) == 0


@pytest.mark.extended
def test_the_tiers_of_a_partition_are_told(tmp_path):
    labels = {"topic": "t", "partition": "0"}

    async def conversation():
        async with tiered(tmp_path.as_uri(), stablelog_metrics_port=0) as desk:
            desk.broker.metrics.serve("127.0.0.1", 0, lambda: HealthFacts(0, 0, 0, is_disk_full=False))
            told_here = teller(desk.broker.metrics.port)

            async def values():
                return await asyncio.to_thread(_of_tiers, told_here, labels)

            empty = await values()
            assert set(empty.values()) == {0}
            await write_segments(desk, 3)
            log = log_of(desk)
            size = sum(segment.size for segment in log.segments()[:3])
            written = await values()
            assert written == {**empty, "lag segments": 3, "lag bytes": size}
            await copy(desk)
            copied = await values()
            assert copied == {
                **empty,
                "local start": log.start_offset,
                "end": log.start_offset,
                "size": size,
                "copied bytes": size,
                "copied segments": 3,
                "deleted segments": 0,
                "requests": copied["requests"],
            }
            assert copied["requests"] >= 3
            answer = await desk.fetch("t", 0, 0)
            assert answer.error_code is ErrorCode.none
            read = await values()
            assert read["read"] >= len(answer.records)
            assert read["in memory"] == read["read"]
            await write_segments(desk, 1)
            desk.broker.disk.write_unsynced(log.segments()[0].path(".log"), b"")
            await copy(desk)
            assert (await values())["failed"] == 1
            # Another broker creates the next object of the chain.
            manifest = max(tmp_path.rglob("manifest/*"))
            epoch, _, number = manifest.name.partition("-")
            manifest.with_name(f"{epoch}-{int(number) + 1:012}").write_bytes(b"fence")
            log.deletion.delete_records(log.end_offset)
            await copy(desk)
            assert (await values())["fenced"] == 1
            await asyncio.to_thread(desk.broker.metrics.close)

    asyncio.run(conversation())


def _of_tiers(told, labels):
    return {
        "local start": told("stablelog_local_log_start_offset", **labels),
        "end": told("stablelog_remote_end_offset", **labels),
        "size": told("stablelog_remote_log_size_bytes", **labels),
        "lag segments": told("stablelog_remote_copy_lag_segments", **labels),
        "lag bytes": told("stablelog_remote_copy_lag_bytes", **labels),
        "requests": told("stablelog_remote_requests", kind="upload") or 0,
        "read": told("stablelog_remote_read_bytes"),
        "in memory": told("stablelog_remote_cache_bytes", where="memory"),
        "on the disk": told("stablelog_remote_cache_bytes", where="disk"),
        "copied bytes": told("stablelog_remote_copied_bytes"),
        "copied segments": told("stablelog_remote_copied_segments"),
        "deleted segments": told("stablelog_remote_deleted_segments"),
        "failed": told("stablelog_remote_failed_partitions"),
        "fenced": told("stablelog_remote_fenced"),
        "coordinator lag": told("stablelog_remote_coordinator_lag_seconds"),
    }


@pytest.mark.extended
def test_every_metric_has_a_test_here():
    text = Path(__file__).read_text()
    assert [name for name in metrics.METRICS if f'told("{name}"' not in text] == []
