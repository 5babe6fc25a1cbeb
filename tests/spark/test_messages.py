"""What a user of Spark sees of an error: one line, and no traceback of a worker."""

import contextlib
import os
import subprocess
import sys

import pytest
from pyspark.errors import PySparkException

import stablelog
from stablelog.errors import RefusedError, UsageError
from stablelog.spark import messages
from stablelog.spark.messages import one_line, one_line_each
from stablelog.testing.topics import create_topic
from tests.spark.starting import in_time

HIDDEN, SHORT = "SPARK_HIDE_TRACEBACK", "SPARK_SIMPLIFIED_TRACEBACK"
TRACEBACK = "Traceback (most recent call last)"


def given(broker, **more):
    return {"kafka.bootstrap.servers": broker.bootstrap, **more}


def message_of(work):
    with pytest.raises(PySparkException) as failed:
        work()
    return str(failed.value)


@pytest.fixture
def worker(monkeypatch):
    """A process of Spark's with short tracebacks; returns whether an error's traceback is left out."""
    monkeypatch.setenv(SHORT, "1")
    monkeypatch.setenv(HIDDEN, "")
    return lambda: os.environ[HIDDEN] == "1"


def refuse():
    raise UsageError("no")


def break_down():
    raise KeyError("a bug")


def refuse_later():
    yield 1
    raise UsageError("no")


def test_a_known_error_hides_the_traceback(worker):
    with pytest.raises(UsageError):
        one_line(refuse)()
    assert worker()


def test_a_known_error_of_a_generator_hides_the_traceback(worker):
    items = one_line_each(refuse_later)()
    assert next(items) == 1
    assert not worker()
    with pytest.raises(UsageError):
        next(items)
    assert worker()


def test_a_bug_keeps_its_traceback(worker):
    with pytest.raises(KeyError):
        one_line(break_down)()
    assert not worker()


def test_outside_of_spark_and_with_full_tracebacks_nothing_is_set(worker, monkeypatch):
    monkeypatch.delenv(SHORT)
    with pytest.raises(UsageError):
        one_line(refuse)()
    assert not worker()


def test_the_process_of_a_stream_is_known_by_its_module(worker, monkeypatch):
    monkeypatch.delenv(SHORT)
    monkeypatch.setattr(messages, "started_as", lambda: messages.STREAM_PROCESS)
    with pytest.raises(UsageError):
        one_line(refuse)()
    assert worker()


@pytest.mark.extended
def test_the_module_of_a_streams_process_is_still_named_so():
    done = subprocess.run([sys.executable, "-c", f"import {messages.STREAM_PROCESS}"], check=False)
    assert done.returncode == 0


def errors(spark, broker):
    """By the place where an error arises: what raises it, and its line."""
    read = spark.read.format("stablelog")
    write = spark.createDataFrame([(None, "x")], "topic string, value string").write.format("stablelog")
    there = given(broker, subscribe="a_topic")
    needs_headers = "headers ARRAY<STRUCT<key: STRING, value: BINARY>> NOT NULL"
    return {
        "an option": (
            lambda: read.options(**there, subscrib="x").load(),
            "stablelog.errors.UsageError: stablelog has no option 'subscrib'; did you mean subscribe?",
        ),
        "planning": (
            lambda: read.options(**given(broker, subscribe="nowhere")).load().collect(),
            f"UnknownTopicOrPartitionError: there is no topic 'nowhere' at {broker.bootstrap}",
        ),
        "a task that reads": (
            lambda: read.options(**there).schema(needs_headers).load().collect(),
            "UsageError: column headers is NOT NULL in the schema, but some records have no value for it",
        ),
        "a write": (
            lambda: spark.range(1).write.format("stablelog").options(**given(broker)).mode("append").save(),
            "UsageError: column 'id' is unknown to the sink",
        ),
        "a task that writes": (
            lambda: write.options(**given(broker)).mode("append").save(),
            "UsageError: a row has no topic: give the option topic, which applies to all rows",
        ),
    }


@pytest.mark.extended
@pytest.mark.parametrize(
    "place", ["an option", "planning", "a task that reads", "a write", "a task that writes"]
)
def test_an_error_is_one_line(spark, stablelog_broker, place):
    with contextlib.suppress(RefusedError):  # another test has created it
        create_topic(stablelog_broker.bootstrap, "a_topic", 1, {})
    with stablelog.connect(stablelog_broker.bootstrap).transaction() as txn:
        txn.write("a_topic", "v", key="k")
    work, line = errors(spark, stablelog_broker)[place]
    message = message_of(work)
    assert line in message
    assert TRACEBACK not in message
    assert len(message.strip().removesuffix("SQLSTATE: 38000").strip().splitlines()) <= 2, message


@pytest.mark.extended
def test_an_error_of_a_stream_has_no_traceback(spark, stablelog_broker, tmp_path):
    rows = spark.readStream.format("stablelog").options(**given(stablelog_broker, subscribe="nowhere")).load()
    sink = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    message = message_of(lambda: in_time(lambda: sink.trigger(availableNow=True).start().awaitTermination()))
    assert f"there is no topic 'nowhere' at {stablelog_broker.bootstrap}" in message
    assert TRACEBACK not in message


@pytest.mark.extended
def test_an_error_of_the_user_keeps_its_traceback_after_one_of_ours(spark, stablelog_broker):
    work, _ = errors(spark, stablelog_broker)["a write"]
    message_of(work)

    def broken(batches):
        raise ValueError("of the user")

    message = message_of(lambda: spark.range(1).mapInArrow(broken, "id LONG").collect())
    assert TRACEBACK in message
    assert "of the user" in message


@pytest.mark.extended
def test_who_asks_for_tracebacks_gets_them(spark, stablelog_broker):
    session = spark.newSession()
    session.conf.set("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "false")
    options = given(stablelog_broker, subscribe="x", subscrib="x")
    message = message_of(lambda: session.read.format("stablelog").options(**options).load())
    assert TRACEBACK in message
