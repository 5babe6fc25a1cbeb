"""A real broker on a data directory that `stablelog restore` has made, for real clients."""

import contextlib
import json

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from stablelog.errors import DataLossError
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.planning import TaskLimits, plan_tasks
from stablelog.spark.source.broker_log import BrokerLog
from stablelog.spark.source.ranges import Range
from stablelog.spark.source.readable_ranges import readable_ranges
from tests.broker.tiering.life import TIERED, TOPIC, URL, alive, lived
from tests.clients.reading import read_to_end
from tests.commands import run
from tests.spark.reading import rows, settled
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.extended


def stablelog(*arguments):
    """Run a command. Returns its output."""
    ran = run(*map(str, arguments))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def consumer_of(bootstrap, group, **more):
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, **more})


def error_of(consumer):
    """The first error that a consumer reports."""
    found = []

    def is_told():
        try:
            message = consumer.poll(0.1)
        except KafkaException as error:
            found.append(error.args[0].code())
        else:
            assert message is None or message.error() is not None, "a record in place of an error"
            found.extend([] if message is None else [message.error().code()])
        return found

    until(is_told, lambda: "the consumer is told nothing")
    return found[0]


def test_real_clients_of_a_lost_broker_meet_the_restored_one(tmp_path, monkeypatch):
    with lived(tmp_path, monkeypatch) as life:
        life.create()
        life.write()
        life.wait_until_remote()
        life.writer.write(1)
        old = Producer(
            {"bootstrap.servers": life.broker.bootstrap, "transactional.id": "old", "log_level": 0}
        )
        old.init_transactions(PATIENCE_S)
        end = life.writer.committed[-1][0] + 1
        for group, offset in (("behind", 3), ("beyond", end)):
            with contextlib.closing(consumer_of(life.broker.bootstrap, group)) as consumer:
                consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
        until(life.is_commit_log_copied, lambda: "the commit log is not copied")
        until(lambda: life.is_commit_log_copied("__consumer_offsets"), lambda: "no offsets")
        committed = life.writer.committed
        life.broker.kill()

        for name in ("once", "twice"):  # Without copies between them: their gaps add up.
            stablelog("restore", URL, "--data", tmp_path / name, "--allow-http")
        report = json.loads(stablelog("restore", URL, "--data", tmp_path / "new", "--allow-http", "--json"))
        (lost,) = [one for one in report["ranges"] if one["topic"] == TOPIC]
        kept = [one for one in committed if one[0] < lost["lost_from"]]
        assert 0 < len(kept) < len(committed)
        stablelog("verify", tmp_path / "new")
        with alive(tmp_path / "new", life.s3, port=life.broker.port) as again:
            with contextlib.closing(again.consumer()) as consumer:
                read = [(one.offset(), one.value()) for one in read_to_end(consumer, TOPIC, start=0)]
            assert read == kept
            check_groups(again.broker.bootstrap, kept, lost)
            check_old_producer(old)
            again.go_on(life.writer)
            again.writer.committed = kept
            again.writer.write(4)
            with contextlib.closing(again.consumer()) as consumer:
                read = [(one.offset(), one.value()) for one in read_to_end(consumer, TOPIC, start=0)]
            assert read == again.writer.committed
            assert read[-1][0] > lost["next_offset"]
            check_spark(again.broker, read, lost)
            assert not again.errors()
        path = {"path": str(tmp_path / "new"), "subscribe": TOPIC}
        starting = json.dumps({TOPIC: {"0": lost["lost_from"] + 1}})
        with pytest.raises(DataLossError, match="are gone with the disk"):
            rows({**path, "startingOffsets": starting}, "value")


def test_no_client_of_lost_records_goes_on_in_silence(tmp_path, monkeypatch):
    """Also after new records, whose offsets are greater than those of the lost ones."""
    with lived(tmp_path, monkeypatch) as life:
        life.create()
        admin = life.admin()
        admin.create_topics([NewTopic("other", 1, 1, config=TIERED)])["other"].result(30)
        given = {"bootstrap.servers": life.broker.bootstrap, "enable.idempotence": True, "log_level": 0}
        known, unknown = Producer(given), Producer(given)  # to the store
        sent(known, b"kept")
        commit_across(life.broker.bootstrap, TOPIC, "other")
        life.write()
        life.wait_until_remote()
        life.writer.write(1)
        sent(known, b"gone")
        gone = sent(unknown, b"gone")
        with contextlib.closing(consumer_of(life.broker.bootstrap, "beyond")) as consumer:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, gone + 1)], asynchronous=False)
        until(life.is_commit_log_copied, lambda: "the commit log is not copied")
        until(lambda: life.is_commit_log_copied("__consumer_offsets"), lambda: "no offsets")
        life.broker.kill()

        report = json.loads(stablelog("restore", URL, "--data", tmp_path / "new", "--allow-http", "--json"))
        (lost,) = [one for one in report["ranges"] if one["topic"] == TOPIC]
        assert gone >= lost["lost_from"]
        (torn,) = report["torn"]
        assert (torn["transactional_id"], torn["found"], torn["lost"]) == ("across", ["t-0"], ["other-0"])
        assert [(one["group"], one["offset"]) for one in report["groups"]] == [("beyond", gone + 1)]
        with alive(tmp_path / "new", life.s3, port=life.broker.port) as again:
            for producer in (known, unknown):
                # The client may call Python code with its fatal error set, which makes a SystemError of it.
                with pytest.raises((KafkaException, SystemError)) as refused:
                    sent(producer, b"after gone")
                error = refused.value.__cause__ or refused.value
                assert error.args[0].code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
            again.go_on(life.writer)
            again.writer.write(2)
            beyond = consumer_of(again.broker.bootstrap, "beyond", **{"auto.offset.reset": "error"})
            with contextlib.closing(beyond) as consumer:
                consumer.subscribe([TOPIC])
                assert error_of(consumer) in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def sent(producer, value):
    """Send a record to the topic. Return its offset, or raise the error of its delivery."""
    found = []
    producer.produce(TOPIC, value, on_delivery=lambda error, message: found.append((error, message)))
    assert producer.flush(PATIENCE_S) == 0
    error, message = found[0]
    if error is not None:
        raise KafkaException(error)
    return message.offset()


def commit_across(bootstrap, *topics):
    """Commit a transaction with a record in each of the topics."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "across", "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for topic in topics:
        producer.produce(topic, b"across")
    producer.commit_transaction(PATIENCE_S)


def check_groups(bootstrap, kept, lost):
    """A group behind the restored end reads on from its offset. One beyond it gets an error."""
    with contextlib.closing(consumer_of(bootstrap, "behind", **{"auto.offset.reset": "error"})) as consumer:
        (found,) = consumer.committed([TopicPartition(TOPIC, 0)], PATIENCE_S)
        assert found.offset == 3
        consumer.assign([found])
        message = None
        while message is None:
            message = consumer.poll(PATIENCE_S)
        assert (message.offset(), message.value()) == next(one for one in kept if one[0] >= 3)
    with contextlib.closing(consumer_of(bootstrap, "beyond", **{"auto.offset.reset": "error"})) as consumer:
        (found,) = consumer.committed([TopicPartition(TOPIC, 0)], PATIENCE_S)
        assert found.offset > lost["lost_from"]
        consumer.assign([found])
        assert error_of(consumer) in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def check_spark(broker, read, lost):
    """Spark reads over the offsets without records, in tasks and in micro-batches. From a lost offset, it gets an error."""
    given = {"bootstrap": broker.bootstrap, "subscribe": TOPIC}
    settled(broker.bootstrap, TOPIC)
    for scan in ("fetch", "auto"):
        found = {**given, "scan": scan, "minPartitions": "4"}
        assert [value for (value,) in rows(found, "value")] == [value for _, value in read]
        for offset in (lost["lost_from"] + 1, lost["next_offset"] - 1):
            starting = json.dumps({TOPIC: {"0": offset}})
            wanted = {**given, "scan": scan, "startingOffsets": starting}
            with pytest.raises(
                DataLossError, match=f"from offset {offset}: .* {lost['lost_from']} on are gone"
            ):
                rows(wanted, "value")
            new = [value for at, value in read if at >= lost["next_offset"]]
            assert [value for (value,) in rows({**wanted, "failOnDataLoss": "false"}, "value")] == new
    options = read_options({**given, "scan": "fetch"}, BATCH)
    log = BrokerLog(options)
    place, end = (TOPIC, 0), read[-1][0] + 1
    with contextlib.closing(log):
        start = lost["lost_from"] - 2
        steps = [
            log.limit_ranges(measured(log, place, start, end), {}, count, None)[place]
            for count in (1, 2, 3, 4)
        ]
        # A plan that was made before the restore has a task that begins at a lost offset.
        planned = plan_tasks(log.spans([Range(place, lost["lost_from"] + 1, end)], {}), TaskLimits())
    assert steps == [start + 1, start + 2, lost["next_offset"] + 1, lost["next_offset"] + 2]
    with pytest.raises(DataLossError, match=f"{lost['lost_from']} on are gone"):
        rows(given, "value", planned=planned)
    assert [value for (value,) in rows({**given, "failOnDataLoss": "false"}, "value", planned=planned)] == new


def measured(log, place, start, end):
    return readable_ranges(log, [Range(place, start, end)], {})


def check_old_producer(old):
    """A transactional producer of the lost broker cannot commit."""
    old.begin_transaction()
    old.produce(TOPIC, b"x")
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(PATIENCE_S)
    assert refused.value.args[0].code() != KafkaError._TIMED_OUT
