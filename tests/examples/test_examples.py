"""Every example, run as it stands, on the shop's log."""

import difflib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from examples import change_stream, enrichment, parquet, shop, windowed_counts
from examples.moved import after
from tests.spark.reading import settled
from tests.spark.starting import in_time
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]
EXAMPLES = Path(shop.__file__).parent


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


@pytest.mark.night
@pytest.mark.timeout(900)
def test_a_declarative_pipeline_reads_and_writes_the_log(bootstrap, tmp_path):
    shutil.copytree(EXAMPLES / "declarative", tmp_path, dirs_exist_ok=True)
    specification = tmp_path / "spark-pipeline.yml"
    text = specification.read_text().replace("127.0.0.1:9092", bootstrap)
    specification.write_text(text.replace("file:///var/tmp/stablelog-shop", (tmp_path / "storage").as_uri()))

    def run():
        done = subprocess.run(
            [str(Path(sys.executable).with_name("spark-pipelines")), "run"],
            cwd=tmp_path,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    in_time(run)
    large = {int(key) for key, _ in read(bootstrap, "large-orders")}
    assert large == {row["order"] for _, row in ORDERS if row["amount"] > 6}
