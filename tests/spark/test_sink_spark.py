"""The sink under real Spark: what Spark repeats, retries, loses and aborts changes nothing in the log."""

import json
import shutil
import time

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

import stablelog
from stablelog.client import joint
from stablelog.client.cluster import Cluster
from tests.client.faults import Proxy, free_port
from tests.client.test_producer import committed, made
from tests.clients.drivers import unique
from tests.spark.faulty import FaultySource

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

COMMIT_JOINT, ABORT_JOINT = 10002, 10003
TIMEOUT_S = 60


@pytest.fixture
def topic(stablelog_broker):
    return made(stablelog_broker.bootstrap, unique("sunk"), 2)


def read(bootstrap, topic, partitions=2):
    return sorted(value for p in range(partitions) for value in committed(bootstrap, topic, p))


class Pipeline:
    """Lines of files to the log: a file is a micro-batch."""

    def __init__(self, spark, tmp_path, bootstrap, topic, sink="stablelog", **options):
        self.spark, self.path = spark, tmp_path
        self.options = {"bootstrap": bootstrap, "topic": topic, **options}
        self.sink = sink
        self.file_count = 0
        self.lines = []
        for name in ("in", "new", "checkpoint"):
            (tmp_path / name).mkdir()

    def add(self, *lines):
        new = self.path / "new" / f"{self.file_count:04}.txt"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(self.path / "in" / new.name)
        self.file_count += 1
        self.lines += lines

    def start(self):
        rows = (
            self.spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.path / "in"))
        )
        # An empty line ends a micro-batch of no rows.
        rows = rows.where("value != ''").repartition(2)
        writer = rows.writeStream.format(self.sink).options(**self.options)
        writer = writer.option("checkpointLocation", str(self.path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    def run(self):
        query = self.start()
        assert query.awaitTermination(TIMEOUT_S)

    def forget_last_commit(self):
        """What a driver killed between the sink's commit and Spark's own leaves."""
        commits = self.path / "checkpoint" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)
        return last

    @property
    def query_id(self):
        return json.loads((self.path / "checkpoint" / "metadata").read_text())["id"]

    @property
    def wanted(self):
        return sorted(line.encode() for line in self.lines if line)


def test_a_stream_and_what_spark_repeats_of_it(spark, tmp_path, stablelog_broker, topic):
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic)
    pipeline.add("a", "b", "c")
    pipeline.add("")  # an empty micro-batch
    pipeline.add("d")
    pipeline.run()
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted
    with Cluster(stablelog_broker.bootstrap) as cluster:
        assert joint.begin(cluster, pipeline.query_id, 0).last_version == 2

    assert pipeline.forget_last_commit() == 2
    pipeline.add("e")
    pipeline.run()
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted


def test_a_task_that_fails_after_having_written_counts_once(spark, tmp_path, stablelog_broker, topic):
    spark.dataSource.register(FaultySource)
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic, "faulty", faults=str(tmp_path))
    (tmp_path / "fail").touch()
    pipeline.add(*[str(n) for n in range(50)])
    pipeline.run()
    assert not (tmp_path / "fail").exists()
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted


def test_the_earlier_of_two_drivers_fails_and_says_why(spark, tmp_path, stablelog_broker, topic):
    spark.dataSource.register(FaultySource)
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic, "faulty", faults=str(tmp_path))
    pipeline.add("a")
    (tmp_path / "wait").touch()
    query = pipeline.start()
    deadline = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "written").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with Cluster(stablelog_broker.bootstrap) as cluster:
        joint.begin(cluster, pipeline.query_id, 0, "another driver")
    (tmp_path / "wait").unlink()
    with pytest.raises(StreamingQueryException, match="another driver works on the same checkpoint"):
        query.awaitTermination(TIMEOUT_S)
    assert read(stablelog_broker.bootstrap, topic) == []
    pipeline.run()
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted


def test_a_commit_whose_answer_is_lost_is_not_undone_by_sparks_abort(spark, tmp_path):
    port = free_port()
    losing = [True]
    with Proxy(
        ("127.0.0.1", port), lambda key, n: "answer" if key == COMMIT_JOINT and losing else None
    ) as proxy:
        listeners = f"PLAINTEXT://{proxy.bootstrap}"
        with stablelog.serve(port=port, advertised_listeners=listeners) as broker:
            made(broker.bootstrap, "t")
            pipeline = Pipeline(spark, tmp_path, proxy.bootstrap, "t", **{"kafka.request.timeout.ms": "500"})
            pipeline.add("a", "b")
            query = pipeline.start()
            with pytest.raises(StreamingQueryException, match="gave up after"):
                query.awaitTermination(TIMEOUT_S)
            assert proxy.count(ABORT_JOINT) == 1
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
            .options(bootstrap=stablelog_broker.bootstrap, topic=topic, **options)
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


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["id as value"], {}, "column 'value' is bigint: it has to be binary or string"),
        (["'a' as vlaue"], {}, "column 'vlaue' is not one that is written; did you mean value?"),
        (["'a' as value"], {"topic": "nowhere"}, "there is no topic 'nowhere'"),
        (["'a' as value"], {"topik": "t"}, "did you mean topic?"),
    ],
)
def test_bad_input_is_one_sentence(spark, stablelog_broker, topic, columns, options, message):
    rows = spark.range(1).selectExpr(*columns)
    given = {"bootstrap": stablelog_broker.bootstrap, "topic": topic, **options}
    with pytest.raises(PySparkException) as refused:
        rows.write.format("stablelog").options(**given).mode("append").save()
    assert message in str(refused.value)


def test_a_checkpoint_that_is_copied_is_the_same_query(spark, tmp_path, stablelog_broker, topic):
    pipeline = Pipeline(spark, tmp_path, stablelog_broker.bootstrap, topic)
    pipeline.add("a")
    pipeline.run()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    pipeline.add("b")
    pipeline.run()
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "copy").rename(tmp_path / "checkpoint")
    pipeline.run()
    assert read(stablelog_broker.bootstrap, topic) == pipeline.wanted
