"""What the sink promises, task by task and decision by decision, without Spark: see test_sink_spark for that."""

import pickle
import random
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import stablelog
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import LATEST, BlockingCluster
from stablelog.coordinators.transactions.joint.name_checks import KEY_SIZE_MAX
from stablelog.errors import DataLossError, RefusedError, UnavailableError, UsageError
from stablelog.spark.options import write_options
from stablelog.spark.sink import task_commits, writer
from stablelog.spark.sink.task import Task, write_part
from stablelog.spark.sink.task_commits import abort_parts, commit_parts
from stablelog.spark.sink.task_messages import JointWrite, application_key
from stablelog.spark.sink.writer import check_columns
from stablelog.spark.sink.written_ends import TEXT_SIZE_MAX, WrittenEnds, read_text, text_of
from tests.client.blocking.test_producer import committed, made
from tests.client.faults import Proxy
from tests.clients.drivers import unique
from tests.spark.reading import make
from tests.waiting import until

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COMMIT_JOINT = 10002


def rows(*values, **columns):
    return iter([pa.RecordBatch.from_pydict({"value": list(values), **columns})])


@pytest.fixture
def topic(stablelog_broker):
    return made(stablelog_broker.bootstrap, unique("sunk"))


@pytest.fixture
def options(stablelog_broker, topic):
    return write_options({"bootstrap": stablelog_broker.bootstrap, "topic": topic})


@pytest.fixture
def part():
    return JointWrite(unique("query"), 0, "run-1")


def read(broker, topic):
    return sorted(committed(broker.bootstrap, topic))


def stable_offset(broker, topic):
    with BlockingCluster(broker.bootstrap) as cluster:
        return cluster.list_offsets({(topic, 0): LATEST})[topic, 0].offset


def test_the_parts_of_all_tasks_are_seen_at_once(stablelog_broker, topic, options, part):
    messages = [write_part(options, part, Task(n, attempt_id=n), rows(f"a{n}", f"b{n}")) for n in range(3)]
    assert [message.record_count for message in messages] == [2, 2, 2]
    assert stable_offset(stablelog_broker, topic) == 0
    commit_parts(options, messages, None)
    assert read(stablelog_broker, topic) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]


def test_an_attempt_that_failed_after_writing_is_not_seen(stablelog_broker, topic, options, part):
    write_part(options, part, Task(0), rows("first attempt"))
    second = write_part(options, part, Task(0, attempt_id=1), rows("second attempt"))
    commit_parts(options, [second], None)
    assert read(stablelog_broker, topic) == [b"second attempt"]


def test_a_repeated_micro_batch_writes_nothing(stablelog_broker, topic, options, part):
    commit_parts(options, [write_part(options, part, Task(0), rows("a"))], None)
    again = JointWrite(part.key, part.version, "run-2")
    taken = rows("a")
    message = write_part(options, again, Task(0), taken)
    assert message.is_skipped
    assert next(taken, None) is None
    commit_parts(options, [message], None)
    assert read(stablelog_broker, topic) == [b"a"]


def test_an_older_checkpoint_is_told_and_a_repeated_batch_write_is_not(stablelog_broker, topic, options):
    key = unique("query")
    for version in range(3):
        part = JointWrite(key, version, "run-1", in_sequence=True)
        commit_parts(options, [write_part(options, part, Task(0), rows(f"a{version}"))], None)
    assert write_part(options, JointWrite(key, 2, "run-2", in_sequence=True), Task(0), rows("a2")).is_skipped
    with pytest.raises(
        RefusedError,
        match=r"checkpoint is at micro-batch 1 .* micro-batch 2 is committed: the checkpoint is an older copy",
    ):
        write_part(
            options, JointWrite(key, 1, "run-2", in_sequence=True), Task(0), rows("a1 and what came since")
        )
    assert write_part(options, JointWrite(key, 1, "run-2"), Task(0), rows("a1")).is_skipped


def test_an_abort_after_the_commit_undoes_nothing(stablelog_broker, topic, options, part):
    messages = [write_part(options, part, Task(0), rows("a"))]
    commit_parts(options, messages, None)
    abort_parts(options, messages)
    assert read(stablelog_broker, topic) == [b"a"]


def test_an_abort_before_the_commit_is_the_end_of_this_run(stablelog_broker, topic, options, part):
    messages = [write_part(options, part, Task(0), rows("a")), None]
    abort_parts(options, messages)
    with pytest.raises(RefusedError):
        commit_parts(options, messages[:1], None)
    with pytest.raises(RefusedError, match="was given up"):
        write_part(options, part, Task(1, attempt_id=1), rows("zombie"))
    again = JointWrite(part.key, part.version, "run-2")
    commit_parts(options, [write_part(options, again, Task(0), rows("a"))], None)
    assert read(stablelog_broker, topic) == [b"a"]


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("lost", [None, "something else"])
def test_nothing_is_committed_where_the_message_of_a_task_is_missing(
    stablelog_broker, topic, options, part, guarantee, lost
):
    options = replace(options, guarantee=guarantee)
    messages = [write_part(options, part, Task(n, attempt_id=n), rows(f"a{n}")) for n in range(3)]
    for place in range(3):
        told = [*messages[:place], lost, *messages[place + 1 :]]
        with pytest.raises(
            UnavailableError,
            match=f"not committed: the message of task {place} is {lost!r}, not a WriteReport",
        ):
            commit_parts(options, told, None)
    assert stable_offset(stablelog_broker, topic) == 0
    commit_parts(options, messages, None)
    assert read(stablelog_broker, topic) == [b"a0", b"a1", b"a2"]


def test_the_messages_of_two_writes_are_not_committed_as_one(stablelog_broker, topic, options, part):
    other = JointWrite(part.key, 1, part.run)
    messages = [write_part(options, one, Task(0), rows("a")) for one in (part, other)]
    with pytest.raises(
        UnavailableError,
        match=r"task 1 is WriteReport\(part=.*version=1.* not a WriteReport of JointWrite\(.*version=0",
    ):
        commit_parts(options, messages, None)
    assert stable_offset(stablelog_broker, topic) == 0


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_large_row_goes_where_the_topic_takes_it(stablelog_broker, options, part, codec):
    topic = unique("large")
    make(stablelog_broker.bootstrap, topic, 1, **{"max.message.bytes": "9000000"})
    options = replace(options, topic=topic, codec=codec)
    values = [b"a", random.Random(1).randbytes(5_000_000), b"b"]
    commit_parts(options, [write_part(options, part, Task(0), rows(*values))], None)
    assert committed(stablelog_broker.bootstrap, topic) == values
    again = JointWrite(part.key, 1, part.run)
    refused = rf"appending to {topic}-0 was refused: a batch of 9000.* bytes \(records: 1\) is more than max.message.bytes"
    with pytest.raises(
        RefusedError, match=f"{refused} of {topic} allows.* at most 1000000 bytes .option batchBytes"
    ):
        write_part(options, again, Task(0), rows(b"a", random.Random(1).randbytes(9_000_000)))


def test_a_topic_that_is_missing_is_named_with_the_command_that_makes_it(options, part):
    options = replace(options, topic=unique("missing"))
    with pytest.raises(RefusedError, match=f"`stablelog topics create {options.topic}` creates it"):
        write_part(options, part, Task(0), rows("a"))


def test_a_row_that_no_request_can_hold_is_refused_by_its_size(options, part):
    with pytest.raises(UsageError, match=r"row 1 .* a record of 1048\d* bytes, and a request holds 1047920"):
        write_part(options, part, Task(0), rows(b"a", bytes(100 << 20)))


def test_a_zombie_task_that_writes_after_the_decision_is_refused(stablelog_broker, topic, options, part):
    def slowly():
        yield from rows("early")
        commit_parts(options, [write_part(options, part, Task(0, attempt_id=1), rows("a"))], None)
        yield from rows("late")

    with pytest.raises(RefusedError, match=r"has ended|can no longer be committed"):
        write_part(options, part, Task(0), slowly())
    assert read(stablelog_broker, topic) == [b"a"]


def test_of_two_drivers_the_earlier_one_is_told(stablelog_broker, topic, options, part):
    first = [write_part(options, part, Task(0), rows("first"))]
    second = [write_part(options, JointWrite(part.key, 0, "run-2"), Task(0), rows("second"))]
    with pytest.raises(RefusedError, match=r"another driver uses the same checkpoint.*stop one of them"):
        commit_parts(options, first, None)
    abort_parts(options, first)
    with pytest.raises(RefusedError, match="another driver uses the same checkpoint"):
        write_part(options, part, Task(0, attempt_id=1), rows("first again"))
    commit_parts(options, second, None)
    assert read(stablelog_broker, topic) == [b"second"]


def test_an_empty_micro_batch_is_remembered_as_well(stablelog_broker, options, part):
    message = write_part(options, part, Task(0), iter(()))
    assert message.child is None
    commit_parts(options, [message], None)
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        assert joint.begin(cluster, part.key, part.version).committed


def test_a_task_that_fails_leaves_nothing_open(stablelog_broker, topic, options, part):
    def failing():
        yield from rows(*["a" * 700_000] * 3)  # more than a batch: some of it is sent at once
        place = {(topic, 0): LATEST}
        with BlockingCluster(stablelog_broker.bootstrap) as cluster:
            until(lambda: cluster.list_offsets(place, "read_uncommitted")[topic, 0].offset, "nothing is sent")
        raise RuntimeError("a row that cannot be computed")

    with pytest.raises(RuntimeError, match="cannot be computed"):
        write_part(options, part, Task(0), failing())
    assert read(stablelog_broker, topic) == []  # also waits until nothing is open


@pytest.mark.extended
@pytest.mark.parametrize("fate", ["answer", "request"])
def test_a_lost_commit_is_asked_for_again(part, fate):
    with Proxy(None, lambda key, n: fate if key == COMMIT_JOINT and n < 3 else None) as proxy:
        listeners = f"PLAINTEXT://{proxy.bootstrap}"
        with stablelog.serve(advertised_listeners=listeners) as broker:
            proxy.target = broker.host, broker.port
            made(broker.bootstrap, "t")
            options = write_options({"bootstrap": proxy.bootstrap, "topic": "t"})
            commit_parts(options, [write_part(options, part, Task(0), rows("a"))], None)
            assert proxy.count(COMMIT_JOINT) >= 3  # once more where an answer is as late as none
            assert read(broker, "t") == [b"a"]


@pytest.mark.extended
def test_a_broker_killed_between_the_tasks_and_the_decision_keeps_both(part):
    with stablelog.serve() as broker:
        made(broker.bootstrap, "t")
        options = write_options({"bootstrap": broker.bootstrap, "topic": "t"})
        messages = [write_part(options, part, Task(n, attempt_id=n), rows(f"a{n}")) for n in range(2)]
        broker.kill()
        broker.start()
        commit_parts(options, messages, None)
        broker.kill()
        broker.start()
        assert write_part(options, JointWrite(part.key, 0, "run-2"), Task(0), rows("a0")).is_skipped
        assert read(broker, "t") == [b"a0", b"a1"]


def test_the_progress_of_the_source_is_committed_with_the_rows(stablelog_broker, topic, part):
    from confluent_kafka import Consumer, TopicPartition

    group, source = unique("group"), made(stablelog_broker.bootstrap, unique("source"), 2)
    options = write_options(
        {
            "bootstrap": stablelog_broker.bootstrap,
            "topic": topic,
            "commitGroup": group,
            "sourceOffsets": '{"x": {"0": 1}}',
        }
    )
    consumer = Consumer({"bootstrap.servers": stablelog_broker.bootstrap, "group.id": group, "log_level": 0})

    def lag_of():
        places = [TopicPartition(source, 0), TopicPartition(source, 1)]
        return [place.offset for place in consumer.committed(places, timeout=60)]

    messages = [write_part(options, part, Task(0), rows("a"))]
    assert lag_of() == [-1001, -1001]
    commit_parts(options, messages, {(source, 0): 7, (source, 1): 9})
    assert lag_of() == [7, 9]
    consumer.close()


def test_at_least_once_commits_each_tasks_transaction(stablelog_broker, topic, part):
    options = write_options(
        {"bootstrap": stablelog_broker.bootstrap, "topic": topic, "guarantee": "at-least-once"}
    )
    write_part(options, part, Task(0), rows("failed attempt"))
    dropped = write_part(options, part, Task(0, attempt_id=1), rows("dropped"))
    abort_parts(options, [dropped])
    messages = [write_part(options, part, Task(n, attempt_id=2 + n), rows(f"a{n}")) for n in range(2)]
    commit_parts(options, messages, None)
    abort_parts(options, messages)
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        end = cluster.list_offsets({(topic, 0): LATEST})[topic, 0].offset  # waits for markers under way
        assert end == 4 + 4  # four records and four markers: the failed attempt was aborted by its successor
    assert read(stablelog_broker, topic) == [b"a0", b"a1"]


def test_exactly_once_of_a_broker_that_knows_no_joint_commit_is_refused_in_words(
    stablelog_broker, topic, monkeypatch
):
    monkeypatch.setattr(joint, "supported", lambda cluster: False)
    given = {"bootstrap": stablelog_broker.bootstrap, "topic": topic}
    with pytest.raises(RefusedError, match=r"no stablelog broker.*guarantee=at-least-once") as refused:
        writer.stream_writer(given, schema(value=StringType()))
    assert refused.value.code is ErrorCode.unsupported_version
    writer.stream_writer(given | {"guarantee": "at-least-once"}, schema(value=StringType()))


@pytest.mark.extended
def test_strings_bytes_headers_topics_and_partitions(stablelog_broker, part):
    from confluent_kafka import Consumer, TopicPartition

    one, two = (made(stablelog_broker.bootstrap, unique("sunk"), 3) for _ in range(2))
    options = write_options({"bootstrap": stablelog_broker.bootstrap})
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(["k", None, "k"]),
            "value": pa.array([b"\xff", None, b""], pa.binary()),
            "topic": [one, two, one],
            "partition": pa.array([2, 1, 0], pa.int32()),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    commit_parts(options, [write_part(options, part, Task(0), iter([batch]))], None)
    consumer = Consumer({"bootstrap.servers": stablelog_broker.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(one, 2, 0), TopicPartition(one, 0, 0), TopicPartition(two, 1, 0)])
    found = {}
    while len(found) < 3:
        message = consumer.poll(60)
        assert message is not None
        found[message.topic(), message.partition()] = (message.key(), message.value(), message.headers())
    consumer.close()
    assert found == {
        (one, 2): (b"k", b"\xff", [("h", b"1"), ("h", None)]),
        (two, 1): (None, None, None),
        (one, 0): (b"k", b"", None),
    }


def test_a_row_without_a_topic_and_a_topic_that_cannot_be_are_named(stablelog_broker, part):
    options = write_options({"bootstrap": stablelog_broker.bootstrap})
    with pytest.raises(UsageError, match="a row has no topic"):
        write_part(options, part, Task(0), rows("a", topic=pa.array([None], pa.string())))
    with pytest.raises(RefusedError, match="'no/where' is not a valid topic name: use 1 to 249 characters"):
        write_part(options, part, Task(0, attempt_id=1), rows("a", topic=["no/where"]))
    with pytest.raises(RefusedError, match="there is no topic 'nowhere'"):
        write_part(options, part, Task(0, attempt_id=2), rows("a", topic=["nowhere"]))


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": StringType()}, "there is no column 'value'; the rows have key"),
        ({"value": LongType()}, "column 'value' is bigint: it has to be binary or string"),
        ({"value": StringType(), "partition": LongType()}, "column 'partition' is bigint: it has to be int"),
        (
            {"value": StringType(), "heders": HEADERS},
            "column 'heders' is unknown to the sink; did you mean headers?",
        ),
        (
            {"value": StringType(), "n": IntegerType()},
            "column 'n' is unknown to the sink; there are key, value",
        ),
        (
            {"value": StringType(), "headers": StringType()},
            "column 'headers' is string: it has to be array<struct",
        ),
    ],
)
def test_a_column_that_cannot_be_written_is_named(columns, message):
    with pytest.raises(UsageError) as refused:
        check_columns(schema(**columns), "t")
    assert message in str(refused.value)


def test_columns_of_a_source_pass():
    found = schema(key=BinaryType(), value=BinaryType(), topic=StringType(), partition=IntegerType())
    check_columns(found, None)
    check_columns(
        found.add("offset", LongType()).add("timestamp", TimestampType()).add("timestampType", IntegerType()),
        None,
    )
    check_columns(schema(value=StringType(), headers=HEADERS), "t")
    with pytest.raises(UsageError, match="give the option topic or a column topic"):
        check_columns(schema(value=StringType()), None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"txnAppId": "a", "txnVersion": "1"}, "for batch writes"),
        ({"commitGroup": "g"}, "requires a checkpoint"),
        ({"commitGroup": "g", "checkpointLocation": "s3://b/c"}, "in a local directory: s3://b/c"),
        ({"commitGroup": "g", "sourceOffsets": '{"t": {"0": 1}}'}, "sourceOffsets are for batch writes"),
    ],
)
def test_what_a_stream_cannot_be_told_is_said(given, message):
    with pytest.raises(UsageError, match=message):
        writer.stream_writer({"bootstrap": "h:1", "topic": "t", **given}, schema(value=StringType()))


@pytest.mark.parametrize(
    ("given", "overwrite", "message"),
    [
        ({}, True, "cannot be overwritten, only appended to"),
        ({"commitGroup": "g"}, False, "option sourceOffsets"),
    ],
)
def test_what_a_batch_write_cannot_be_told_is_said(given, overwrite, message):
    with pytest.raises(UsageError, match=message):
        writer.batch_writer(
            {"bootstrap": "h:1", "topic": "t", **given}, schema(value=StringType()), overwrite=overwrite
        )


def test_a_micro_batch_that_was_planned_anew_with_other_offsets_is_not_passed_over(
    stablelog_broker, topic, options
):
    first = JointWrite(unique("query"), 0, "run-1", in_sequence=True)
    commit_parts(options, [write_part(options, first, Task(0), rows("a"))], None, "of a")
    again = JointWrite(first.key, 0, "run-2", in_sequence=True)
    skipped = [write_part(options, again, Task(0), rows("a", "b"))]
    with pytest.raises(
        RefusedError, match=r"micro-batch 0 .* with another plan .*begin with a new checkpoint"
    ):
        commit_parts(options, skipped, None, "of a and b")
    for digest in ("of a", ""):  # the same; and a checkpoint that cannot be read here
        commit_parts(options, skipped, None, digest)
    write = JointWrite(unique("app"), 7, "run-1")
    for digest in ("", "offsets"):
        commit_parts(options, [write_part(options, write, Task(0), rows("c"))], None, digest)
    assert read(stablelog_broker, topic) == [b"a", b"c"]


def test_a_version_counts_for_one_target_and_a_skipped_write_is_a_warning(stablelog_broker, topic, caplog):
    other = made(stablelog_broker.bootstrap, unique("sunk"))
    application = unique("app")

    def write(version, value, **target):
        given = {
            "bootstrap": stablelog_broker.bootstrap,
            "txnAppId": application,
            "txnVersion": str(version),
            **target,
        }
        found, columns = write_options(given), schema(value=StringType(), topic=StringType())
        part = pickle.loads(pickle.dumps(writer.batch_writer(given, columns, overwrite=False))).part
        commit_parts(found, [write_part(found, part, Task(0), rows(value, topic=[other]))])
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        caplog.clear()
        return warned

    assert write(4, "a4", topic=topic) == []
    assert write(4, "b4", topic=other) == []
    assert write(4, "c4") == []
    assert write(5, "a5", topic=topic) == []
    for version, target, words in (
        (0, {"topic": topic}, f"topic {topic} is skipped, and none of its rows is written: version 5 is"),
        (4, {"topic": other}, f"topic {other} is skipped, and none of its rows is written: version 4 is"),
        (4, {}, "rows with a column topic is skipped, and none of its rows is written: version 4 is"),
    ):
        (warned,) = write(version, "skipped", **target)
        assert warned.startswith(f"version {version} of txnAppId {application} for {words}")
    assert read(stablelog_broker, topic) == [b"a4", b"a5"]
    assert read(stablelog_broker, other) == [b"b4", b"c4"]


def test_the_keys_of_applications_and_targets_are_distinct_and_short():
    names = ["a", "b", "a" * 100, "a" * 101, "a" * 249, "a" * 248 + "b", None]
    keys = [application_key(app, name) for app in ("x", "x@a", "x" * 128) for name in names]
    assert len(set(keys)) == len(keys)
    assert max(map(len, keys)) <= KEY_SIZE_MAX
    with pytest.raises(UsageError, match="txnAppId has 129 bytes, and at most 128 are allowed"):
        application_key("x" * 129, "a")


def test_a_driver_whose_micro_batch_another_has_committed_is_told(stablelog_broker, topic, options):
    part = JointWrite(unique("query"), 0, "run-1", in_sequence=True)
    first = [write_part(options, part, Task(n, attempt_id=n), rows(f"first {n}")) for n in range(2)]
    second = [
        write_part(options, JointWrite(part.key, 0, "run-2", in_sequence=True), Task(0), rows("second")),
    ]
    commit_parts(options, second, None)
    with pytest.raises(RefusedError, match="committed by another driver while this one wrote it"):
        commit_parts(options, first, None)
    late = write_part(options, part, Task(1, attempt_id=2), rows("first 1"))
    assert late.is_skipped
    with pytest.raises(RefusedError, match="committed by another driver"):
        commit_parts(options, [first[0], late], None)
    assert read(stablelog_broker, topic) == [b"second"]


def test_a_task_of_a_dead_driver_that_asks_late_takes_nothing_from_its_successor(
    stablelog_broker, topic, options
):
    schema_ = schema(value=StringType())
    given = {"bootstrap": stablelog_broker.bootstrap, "topic": topic}
    started = [pickle.dumps(writer.stream_writer(given, schema_)) for _ in range(2)]
    dead, successor = (pickle.loads(writer).order for writer in started)
    assert dead < successor
    key = unique("query")
    written = write_part(options, JointWrite(key, 0, "run-2", successor), Task(0), rows("a"))
    with pytest.raises(RefusedError, match="another driver uses the same checkpoint"):
        write_part(options, JointWrite(key, 0, "run-1", dead), Task(1), rows("zombie"))
    commit_parts(options, [written], None)
    assert read(stablelog_broker, topic) == [b"a"]


# -- a target that has lost what was committed -------------------------------------------------------------------


@pytest.fixture(params=["another process", "the same process"])
def started(request, monkeypatch):
    """Begin a new start of the query. Spark may use the process of an earlier start."""

    def start():
        if request.param == "another process":
            monkeypatch.setattr(task_commits, "committed_here", {})
        RUNS.append(unique("run"))

    start()
    return start


RUNS = ["run"]


def in_sequence(key, version):
    return JointWrite(key, version, RUNS[-1], in_sequence=True)


def written(options, part, *values):
    commit_parts(options, [write_part(options, part, Task(0), rows(*values))])


@pytest.mark.parametrize("bears", ["true", "false"])
def test_a_target_that_does_not_know_earlier_micro_batches_is_named(
    stablelog_broker, topic, started, bears, caplog
):
    given = {"bootstrap": stablelog_broker.bootstrap, "topic": topic, "failOnDataLoss": bears}
    options, key = write_options(given), unique("query")
    for version in (0, 1):
        written(options, in_sequence(key, version), b"%d" % version)
    started()
    written(options, in_sequence(key, 2), b"2")
    started()
    message = f"does not know that micro-batches 3 to 4 of query {key} were committed"
    if bears == "true":
        found = [write_part(options, in_sequence(key, 5), Task(0), rows(b"5"))]
        with pytest.raises(DataLossError, match=message):
            commit_parts(options, found)
        abort_parts(options, found)
        assert read(stablelog_broker, topic) == [b"0", b"1", b"2"]
    else:
        written(options, in_sequence(key, 5), b"5")
        written(options, in_sequence(key, 6), b"6")
        assert caplog.text.count(message) == 1


def test_a_topic_that_was_created_again_has_lost_the_rows(stablelog_broker, started):
    topic, key = unique("again"), unique("query")
    make(stablelog_broker.bootstrap, topic, 2)
    options = write_options({"bootstrap": stablelog_broker.bootstrap, "topic": topic})
    written(options, in_sequence(key, 0), b"a", b"b", b"c")
    written(options, in_sequence(key, 1))  # what is known of the rows stays
    started()
    written(options, in_sequence(key, 2), b"d")
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(60)
    make(stablelog_broker.bootstrap, topic, 2)
    started()
    with pytest.raises(DataLossError, match=rf"rows of committed micro-batches .*: {topic}-0 from offset"):
        written(options, in_sequence(key, 3), b"e")


def test_what_is_stored_of_the_ends_of_rows_is_read_as_it_was_written():
    ends = WrittenEnds(17, {("a.b", 0): 5, ("a.b", 12): 2**62, ("c_d-e", 1): 1})
    assert read_text(text_of("digest", ends)) == ("digest", ends)
    assert read_text(text_of("", ends)) == ("", ends)
    assert read_text(text_of("digest", WrittenEnds())) == ("digest", WrittenEnds())
    many = WrittenEnds(17, {("topic", number): 10**6 + number for number in range(1000)})
    text = text_of("digest", many)
    assert TEXT_SIZE_MAX - 20 < len(text) <= TEXT_SIZE_MAX
    assert read_text(text)[1].offsets.items() <= many.offsets.items()
    assert read_text("any text: 1") == ("any text: 1", WrittenEnds())
