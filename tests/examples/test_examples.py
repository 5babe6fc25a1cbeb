"""Every example, run as it stands, on the shop's log."""

import contextlib
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

import stablelog
from examples import change_stream, enrichment, parquet, shop, windowed_counts
from examples.moved import after
from stablelog.client.blocking.cluster import LATEST, BlockingCluster
from tests import documented
from tests.spark.reading import settled
from tests.spark.starting import in_time
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.spark]
EXAMPLES = Path(shop.__file__).parent
(FLOW,) = documented.take("spark.md", "dp.create_sink")
(COMMANDS,) = documented.take("spark.md", "spark-pipelines run")
(CATALOG,) = documented.take("spark.md", "spark.sql.catalogImplementation")
RUN_S = 800  # A run of the declarative pipeline takes 30 s on an idle machine.


@pytest.fixture(scope="module")
def bootstrap():
    with shop.open_log() as address:
        yield address


def read(bootstrap, topic):
    """Key and value of every committed record of a topic."""
    settled(bootstrap, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    found, ended = [], set()
    partition_count = len(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
    while len(ended) < partition_count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{topic} did not come to its end"
        if message.error() is None:
            found.append((message.key().decode(), json.loads(message.value())))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found


ORDERS = [(str(number), shop.order(number)) for number in range(shop.ORDER_COUNT)]


@pytest.mark.night
def test_orders_go_to_parquet_and_back_once_each(spark, bootstrap, tmp_path):
    in_time(lambda: parquet.run(spark, bootstrap, str(tmp_path)))
    assert sorted(read(bootstrap, "orders-copy"), key=lambda row: int(row[0])) == ORDERS


@pytest.mark.night
def test_every_order_gets_its_customers_name(spark, bootstrap, tmp_path):
    in_time(lambda: enrichment.run(spark, bootstrap, str(tmp_path)))
    named = sorted(read(bootstrap, "orders-named"), key=lambda row: int(row[0]))
    assert [(key, row["order"], row["name"]) for key, row in named] == [
        (key, row["order"], shop.CUSTOMERS[row["customer"]]) for key, row in ORDERS
    ]


@pytest.mark.night
def test_every_window_that_is_over_is_counted_once(spark, bootstrap, tmp_path):
    in_time(lambda: windowed_counts.run(spark, bootstrap, str(tmp_path)))
    counts = read(bootstrap, "order-counts")
    assert len({window for window, _ in counts}) == len(counts)
    whole = [count["orders"] for window, count in sorted(counts)[1:]]
    assert whole, "no window was over"
    assert set(whole) == {60}


@pytest.mark.night
def test_a_table_keeps_the_newest_value_of_each_key(spark, bootstrap, tmp_path):
    in_time(lambda: change_stream.run(spark, bootstrap, str(tmp_path)))
    expected = {}
    for number in range(shop.ORDER_COUNT):
        expected[f"basket-{number % 40}"] = None if number % 4 == 3 else shop.order(number)
    newest = max((tmp_path / "baskets").glob("version=*"), key=lambda path: int(path.name.split("=")[1]))
    table = {row["key"]: json.loads(row["value"]) for row in spark.read.parquet(str(newest)).collect()}
    assert table == {key: value for key, value in expected.items() if value is not None}


@pytest.mark.extended
def test_a_job_moves_over_by_changing_the_format(spark, bootstrap, tmp_path):
    in_time(lambda: after.run(spark, bootstrap, str(tmp_path)))
    assert sorted(read(bootstrap, "orders-moved"), key=lambda row: int(row[0])) == ORDERS
    lines = [(EXAMPLES / "moved" / name).read_text().splitlines() for name in ("before.py", "after.py")]
    changed = [line for line in difflib.ndiff(*lines) if line[0] in "+-" and '"""' not in line]
    assert {line[2:].strip() for line in changed} == {
        'spark.readStream.format("kafka")',
        'spark.readStream.format("stablelog")',
        '.writeStream.format("kafka")',
        '.writeStream.format("stablelog")',
    }


DECLARATIVE = EXAMPLES / "declarative"


@pytest.fixture
def own_log():
    """A log for a test that writes more orders."""
    with shop.open_log() as address:
        yield address


@pytest.fixture
def pipeline(own_log, tmp_path):
    """The declarative example, with its files in a directory of the test. Returns a function that starts a run of it."""
    shutil.copytree(DECLARATIVE, tmp_path, dirs_exist_ok=True)
    for name in ("spark-pipeline.yml", "catalog.conf"):
        text = (tmp_path / name).read_text()
        assert "/var/tmp/stablelog-shop/" in text
        text = text.replace("/var/tmp/stablelog-shop", str(tmp_path / "shop"))
        (tmp_path / name).write_text(text.replace("127.0.0.1:9092", own_log))
    (command,) = re.findall(r"`spark-pipelines (run .*?)`", (DECLARATIVE / "spark-pipeline.yml").read_text())
    program = str(Path(sys.executable).with_name("spark-pipelines"))
    started = []

    def start():
        said = tmp_path / f"run-{len(started)}.txt"
        with said.open("wb") as output:
            run = subprocess.Popen(
                [program, *command.split()],
                cwd=tmp_path,
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(run)
        return run, said

    yield start
    for one in started:
        kill(one)


def kill(run):
    """Kill a run with all its processes: the driver is a child of the command."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def ended(start):
    """Run the pipeline to its end."""

    def work():
        run, said = start()
        assert run.wait(RUN_S) == 0, said.read_text()

    in_time(work)


def killed(start, bootstrap, isolation):
    """Kill a run of the pipeline as soon as a reader with an isolation level gets what it writes into the log."""
    place = "large-orders", 0
    run, said = start()
    with BlockingCluster(bootstrap) as cluster:

        def has_written():
            assert run.poll() is None, said.read_text()
            return cluster.list_offsets({place: LATEST}, isolation)[place].offset

        until(has_written, "the pipeline writes no large order", patience_s=RUN_S)
    kill(run)


def large_orders(bootstrap):
    """The numbers of the large orders that the pipeline has written, in order."""
    return sorted(int(key) for key, _ in read(bootstrap, "large-orders"))


@pytest.mark.night
@pytest.mark.timeout(5 * RUN_S)
def test_a_declarative_pipeline_writes_each_row_once_in_runs_that_follow_killed_ones(own_log, pipeline):
    expected = [row["order"] for _, row in ORDERS if row["amount"] > 6]
    in_time(lambda: killed(pipeline, own_log, "read_uncommitted"))  # before the commit of the micro-batch
    in_time(lambda: killed(pipeline, own_log, "read_committed"))  # after it
    ended(pipeline)
    assert large_orders(own_log) == expected
    more = range(shop.ORDER_COUNT, shop.ORDER_COUNT + 20)
    with stablelog.connect(own_log).transaction() as txn:
        for number in more:
            txn.write("orders", key=str(number), value=json.dumps(shop.order(number)))
    ended(pipeline)
    expected += [number for number in more if shop.order(number)["amount"] > 6]
    assert large_orders(own_log) == expected


def test_the_documents_print_the_declarative_example_as_it_is():
    assert FLOW in (DECLARATIVE / "transformations" / "orders.py").read_text()
    directory, command = COMMANDS.splitlines()
    assert directory == f"cd {DECLARATIVE.relative_to(EXAMPLES.parent)}"
    assert f"`{command}`" in (DECLARATIVE / "spark-pipeline.yml").read_text()
    settings = [line.split() for line in CATALOG.splitlines()]
    printed = [line.split() for line in (DECLARATIVE / "catalog.conf").read_text().splitlines()]
    assert len(settings) == 3
    assert all(line in printed for line in settings)
