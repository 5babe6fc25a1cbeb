"""The sink under real Spark: what Spark repeats, retries, loses and aborts changes nothing in the log."""

import json
import shutil

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException, StreamingQueryException

import stablelog
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.errors import RefusedError
from tests.client.blocking.test_producer import committed, made
from tests.client.faults import Proxy
from tests.clients.drivers import Confluent, unique
from tests.spark.faulty import FaultySource
from tests.spark.starting import in_time
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

COMMIT_JOINT, ABORT_JOINT = 10002, 10003
TIMEOUT_S = 300  # on a loaded machine


@pytest.fixture
def topic(stablelog_broker):
    return made(stablelog_broker.bootstrap, unique("sunk"), 2)


def read(bootstrap, topic, partitions=2):
    return sorted(value for p in range(partitions) for value in committed(bootstrap, topic, p))


def to_the_end(start):
    """Start a query of what is there, and wait for its end."""
    assert in_time(lambda: start().awaitTermination(TIMEOUT_S))


class Pipeline:
    """From one topic of the log to another, three records at a time."""

    def __init__(self, spark, tmp_path, bootstrap, topic, sink="stablelog", **options):
        self.spark, self.path, self.sink = spark, tmp_path, sink
        self.options = {"bootstrap": bootstrap, "topic": topic, **options}
        self.source = made(bootstrap, unique("source"))
        self.lines = []

    def add(self, *lines):
        Confluent(self.options["bootstrap"]).produce(self.source, [line.encode() for line in lines])
        self.lines += lines

    def start(self):
        given = {"bootstrap": self.options["bootstrap"], "subscribe": self.source, "maxOffsetsPerTrigger": 3}
        rows = self.spark.readStream.format("stablelog").options(startingOffsets="earliest", **given).load()
        # An empty line makes no row.
        rows = rows.selectExpr("cast(value as string) value").where("value != ''").repartition(2)
        writer = rows.writeStream.format(self.sink).options(**self.options)
        writer = writer.option("checkpointLocation", str(self.path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    def run(self):
        to_the_end(self.start)

    def forget_last_commit(self):
        """What a driver killed between the sink's commit and Spark's own leaves."""
        commits = self.path / "checkpoint" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)
        return last

    def forget_last_plan(self):
        """What a power failure leaves of a checkpoint that nobody has flushed, or a copy that is one behind."""
        last = self.forget_last_commit()
        offsets = self.path / "checkpoint" / "offsets"
        for path in (offsets / str(last), offsets / f".{last}.crc"):
            path.unlink(missing_ok=True)
        return last

    @property
    def query_id(self):
        return json.loads((self.path / "checkpoint" / "metadata").read_text())["id"]

    @property
    def wanted(self):
        return sorted(line.encode() for line in self.lines if line)


@pytest.mark.extended
def test_a_stream_and_what_spark_repeats_of_it(spark, tmp_path, stablelog_broker, topic):
    group = unique("group")
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic, commitGroup=group)
    pipeline.add("a", "b", "c")
    pipeline.add("", "", "")  # a micro-batch of no rows
    pipeline.add("d")
    pipeline.run()
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        assert joint.begin(cluster, pipeline.query_id, 0).last_version == 2
    assert progress_of(stablelog_broker.bootstrap, group, pipeline.source) == 7

    assert pipeline.forget_last_commit() == 2
    pipeline.add("e")
    pipeline.run()
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted
    assert progress_of(stablelog_broker.bootstrap, group, pipeline.source) == 8


@pytest.mark.night
def test_a_micro_batch_that_is_planned_anew_with_more_rows_is_not_taken_for_a_repetition(
    spark, tmp_path, stablelog_broker, topic
):
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic)
    pipeline.add("a", "b", "c", "d")
    pipeline.run()
    assert pipeline.forget_last_plan() == 1
    pipeline.run()  # nothing new to read: the plan is the same
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted

    assert pipeline.forget_last_plan() == 1
    pipeline.add("e")
    for _ in range(2):
        with pytest.raises(
            StreamingQueryException, match=r"micro-batch 1 .* with another plan .*new checkpoint"
        ):
            to_the_end(pipeline.start)
    assert read(stablelog_broker.bootstrap, topic) == [b"a", b"b", b"c", b"d"]


@pytest.mark.extended
def test_so_it_is_with_a_source_of_files(spark, tmp_path, stablelog_broker, topic):
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic)
    (tmp_path / "lines").mkdir()

    def start():
        lines = spark.readStream.text(str(tmp_path / "lines"))
        writer = lines.writeStream.format("stablelog").options(**pipeline.options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    for name in ("a", "b"):
        (tmp_path / "lines" / name).write_text(name)
        to_the_end(start)
    assert pipeline.forget_last_commit() == 1
    to_the_end(start)
    assert read(stablelog_broker.bootstrap, topic) == [b"a", b"b"]

    assert pipeline.forget_last_plan() == 1
    shutil.rmtree(tmp_path / "checkpoint" / "sources" / "0" / "1", ignore_errors=True)
    for path in (tmp_path / "checkpoint" / "sources" / "0").glob("*1*"):
        path.unlink()
    (tmp_path / "lines" / "c").write_text("c")
    with pytest.raises(StreamingQueryException, match="with another plan"):
        to_the_end(start)


@pytest.mark.extended
def test_what_for_each_batch_writes_twice_is_there_once(spark, tmp_path, stablelog_broker, topic):
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic)
    application = unique("app")
    done = []

    def write(rows, batch_id):
        for part, condition in enumerate(("value < 'm'", "value >= 'm'")):
            (
                rows.where(condition)
                .write.format("stablelog")
                .options(**pipeline.options, txnAppId=f"{application}-{part}", txnVersion=batch_id)
                .mode("append")
                .save()
            )
            if part == 0 and batch_id == 1 and batch_id not in done:
                done.append(batch_id)
                raise RuntimeError("between the two writes")
        done.append(batch_id)

    def start():
        given = {"bootstrap": stablelog_broker.bootstrap, "subscribe": pipeline.source}
        rows = spark.readStream.format("stablelog").options(startingOffsets="earliest", **given)
        rows = rows.option("maxOffsetsPerTrigger", 3).load().selectExpr("cast(value as string) value")
        writer = rows.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    pipeline.add("a", "b", "z", "c", "y", "x", "d")
    with pytest.raises(StreamingQueryException, match="between the two writes"):
        to_the_end(start)
    to_the_end(start)
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted
    assert pipeline.forget_last_commit() == 2
    to_the_end(start)
    assert done == [0, 1, 1, 2, 2]
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted


def progress_of(bootstrap, group, topic):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        return consumer.committed([TopicPartition(topic, 0)], timeout=60)[0].offset
    finally:
        consumer.close()


@pytest.mark.extended
def test_a_task_that_fails_after_having_written_counts_once(spark, tmp_path, stablelog_broker, topic):
    spark.dataSource.register(FaultySource)
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic, "faulty", faults=str(tmp_path))
    (tmp_path / "fail").touch()
    pipeline.add("a", "b", "c")
    pipeline.run()
    assert not (tmp_path / "fail").exists()
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted


@pytest.mark.extended
def test_the_earlier_of_two_drivers_fails_and_says_why(spark, tmp_path, stablelog_broker, topic):
    spark.dataSource.register(FaultySource)
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic, "faulty", faults=str(tmp_path))
    pipeline.add("a")
    (tmp_path / "wait").touch()

    def waiting():
        query = pipeline.start()

        def is_written():
            assert query.isActive or query.awaitTermination(TIMEOUT_S)  # which raises what it has failed with
            return (tmp_path / "written").exists()

        until(is_written, "nothing is written", patience_s=TIMEOUT_S)
        return query

    query = in_time(waiting)
    with BlockingCluster(stablelog_broker.bootstrap) as cluster:
        with pytest.raises(RefusedError, match="no longer has version 0"):
            joint.begin(cluster, pipeline.query_id, 0, "what is left of an earlier one", order=0)
        joint.begin(cluster, pipeline.query_id, 0, "another driver")
    (tmp_path / "wait").unlink()
    with pytest.raises(StreamingQueryException, match="another driver uses the same checkpoint"):
        query.awaitTermination(TIMEOUT_S)
    assert read(stablelog_broker.bootstrap, topic) == []
    pipeline.run()
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted


@pytest.mark.extended
def test_a_commit_whose_answer_is_lost_is_not_undone_by_sparks_abort(spark, tmp_path):
    losing = [True]
    with Proxy(None, lambda key, n: "answer" if key == COMMIT_JOINT and losing else None) as proxy:
        listeners = f"PLAINTEXT://{proxy.bootstrap}"
        with stablelog.serve(advertised_listeners=listeners) as broker:
            proxy.target = broker.host, broker.port
            made(broker.bootstrap, "t")
            pipeline = Pipeline(spark, tmp_path, proxy.bootstrap, "t", **{"kafka.request.timeout.ms": "500"})
            pipeline.add("a", "b")
            with pytest.raises(StreamingQueryException, match="did not succeed within"):
                to_the_end(pipeline.start)
            assert proxy.count(ABORT_JOINT) >= 1
            assert read(broker.bootstrap, "t", 1) == pipeline.wanted
            losing.clear()
            pipeline.add("c")
            pipeline.run()
            assert read(broker.bootstrap, "t", 1) == pipeline.wanted


def test_a_batch_write_with_a_version_is_done_once(spark, stablelog_broker, topic):
    rows = spark.range(20).selectExpr("cast(id as string) key", "cast(id as string) value").repartition(2)

    def write(**options):
        (
            rows.write.format("stablelog")
            .options(**{"bootstrap": stablelog_broker.bootstrap, "topic": topic, **options})
            .mode("append")
            .save()
        )

    application = unique("app")
    for version in (7, 7, 3, 8):
        write(txnAppId=application, txnVersion=version)
    once = [b"%d" % n for n in range(20)]
    assert read(stablelog_broker.bootstrap, topic) == sorted(2 * once)
    write()
    write()
    assert read(stablelog_broker.bootstrap, topic) == sorted(4 * once)
    other = made(stablelog_broker.bootstrap, unique("other"))
    write(topic=other, txnAppId=application, txnVersion=8)
    assert read(stablelog_broker.bootstrap, other, 1) == sorted(once)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["id as value"], {}, "column 'value' is bigint: it has to be binary or string"),
        (["'a' as vlaue"], {}, "column 'vlaue' is unknown to the sink; did you mean value?"),
        (
            ["'a' as value"],
            {"topic": "no/where"},
            "'no/where' is not a valid topic name: use 1 to 249 characters",
        ),
        (["'a' as value"], {"topik": "t"}, "did you mean topic?"),
    ],
)
def test_bad_input_is_one_sentence(spark, stablelog_broker, topic, columns, options, message):
    rows = spark.range(1).selectExpr(*columns)
    given = {"bootstrap": stablelog_broker.bootstrap, "topic": topic, **options}
    with pytest.raises(PySparkException) as refused:
        rows.write.format("stablelog").options(**given).mode("append").save()
    assert message in str(refused.value)


@pytest.mark.extended
def test_a_stream_in_update_mode_is_written_once_by_foreach_batch(spark, tmp_path, stablelog_broker, topic):
    """PySpark refuses the mode for Python sinks. `foreachBatch` with a version takes its place."""
    source = made(stablelog_broker.bootstrap, unique("source"))
    Confluent(stablelog_broker.bootstrap).produce(source, [b"a", b"b", b"a"])
    log = {"kafka.bootstrap.servers": stablelog_broker.bootstrap}
    given = {**log, "subscribe": source, "startingOffsets": "earliest"}
    rows = spark.readStream.format("stablelog").options(**given).load().groupBy("value").count()
    rows = rows.selectExpr("concat(cast(value as string), cast(count as string)) value").coalesce(1)

    def started(writer, name):
        checkpoint = str(tmp_path / name)
        writer = writer.outputMode("update").option("checkpointLocation", checkpoint)
        return writer.trigger(availableNow=True).start()

    with pytest.raises(PySparkException, match=r"(?i)update"):
        started(rows.writeStream.format("stablelog").options(**log, topic=topic), "refused").awaitTermination(
            TIMEOUT_S
        )

    def write(batch, batch_id):
        for _ in range(2):  # as after a driver that was killed between the write and Spark's commit
            writer = batch.write.format("stablelog").options(**log, topic=topic, txnAppId="counts")
            writer.option("txnVersion", batch_id).mode("append").save()

    to_the_end(lambda: started(rows.writeStream.foreachBatch(write), "counts"))
    assert read(stablelog_broker.bootstrap, topic) == [b"a2", b"b1"]
