"""The blocks of the guides for Spark, and the stream of README.md, run as they are printed."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stablelog
from stablelog.spark.kafka_settings import REFUSED, WITHOUT_EFFECT
from stablelog.spark.option_table import OPTIONS
from stablelog.testing.topics import create_topic
from tests import documented
from tests.secured import PASSWORD, secured
from tests.spark.objects.stored import Stored, serving
from tests.spark.starting import in_time

pytestmark = [pytest.mark.spark, pytest.mark.extended]
ROOT = Path(__file__).parents[2]
RECORD_COUNT = 5
ADDRESS = "127.0.0.1:9092"
GUIDE, MOVING = "spark.md", "from-sparks-kafka-connector.md"
# The modules that run the other blocks.
OTHERS = ("tests.spark.test_documented_tables", "tests.examples.test_examples")
(COMMANDS,) = documented.take(GUIDE, "stablelog serve")
(COPY,) = documented.take(GUIDE, 'topic="copies"')
(BATCH,) = documented.take(GUIDE, "orders.selectExpr", "show()")
(VIEW,) = documented.take(GUIDE, "CREATE OR REPLACE TEMPORARY VIEW")
(COUNT,) = documented.take(GUIDE, "stablelog.spark.count")
(TOTALS,) = documented.take(GUIDE, "txnVersion", "totals-checkpoint")
(CUT,) = documented.take(GUIDE, '"cut", "true"')
(STORED,) = documented.take(GUIDE, "s3://bucket/prefix")
(LOGIN,) = documented.take(GUIDE, "SASL_SSL")
(FORMATS,) = documented.take(MOVING, 'format("kafka")')
(POSITION,) = documented.take(MOVING, "def position")
(MOVED,) = documented.take(MOVING, "position(")[1:]


def programs():
    """By document: its program, and the topic that the program copies to the topic `copies`."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (stream,) = [program for program in programs if "spark" in program]
    return {GUIDE: (COPY, "orders"), "README.md": (stream, "greetings")}


@pytest.fixture(scope="module")
def broker():
    """A broker of this module: the topics of the documents are also written by other tests."""
    with stablelog.serve() as started:
        yield started


@pytest.mark.parametrize("document", programs())
def test_the_printed_program_copies_each_record_once(spark, broker, document, tmp_path):
    program, topic = programs()[document]
    assert len([line for line in program.splitlines() if line]) <= 10
    bootstrap = broker.bootstrap
    target = f"copies-{topic}"
    places = {"127.0.0.1:9092": bootstrap, '"copies"': f'"{target}"', '"checkpoint"': f'"{tmp_path}"'}
    for printed, here in places.items():
        assert printed in program
        program = program.replace(printed, here)
    for name in (topic, target):
        create_topic(bootstrap, name, 1, {})
    with stablelog.connect(bootstrap).transaction() as txn:
        for number in range(RECORD_COUNT):
            txn.write(topic, str(number), key=str(number))
    for _ in range(2):  # the second run finds everything copied
        in_time(lambda: exec(program, {}))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": target}
    rows = in_time(lambda: spark.read.format("stablelog").options(**options).load().collect())
    assert sorted(row.value for row in rows) == [str(number).encode() for number in range(RECORD_COUNT)]


def rows_of(stream, directory):
    """The rows that a stream has now, as tuples of topic and value."""
    found = []

    def collect(batch, _):
        found.extend((row.topic, row.value.decode()) for row in batch.collect())

    def run():
        query = stream.writeStream.foreachBatch(collect).option("checkpointLocation", str(directory))
        query.trigger(availableNow=True).start().awaitTermination()

    in_time(run)
    return sorted(found)


def test_the_guide_runs_from_its_first_command_to_its_last_program(spark, tmp_path, capsys):
    with stablelog.serve() as broker:
        names = {"spark": spark}

        def here(block):
            text = block.replace(ADDRESS, broker.bootstrap)
            return re.sub(r'"((?:\w+-)?checkpoint)"', rf'"{tmp_path}/\1"', text)

        def write(topic, *values):
            with stablelog.connect(broker.bootstrap).transaction() as txn:
                for value in values:
                    txn.write(topic, value, key=None)

        serve, commands = COMMANDS.split("\n", 1)
        assert serve == "stablelog serve --data log &"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = os.environ | {"STABLELOG_BOOTSTRAP": broker.bootstrap, "PATH": path}
        subprocess.run(["bash", "-ec", commands], env=variables, check=True, capture_output=True)
        in_time(lambda: exec(here(COPY), names))
        capsys.readouterr()
        exec(here(BATCH), names)
        shown = capsys.readouterr().out
        assert "chair" in shown
        assert "lamp" in shown
        spark.sql(here(VIEW))
        assert spark.table("orders").count() == eval(COUNT, names) == 2
        spark.catalog.dropTempView("orders")

        create_topic(broker.bootstrap, "totals", 1, {})
        in_time(lambda: exec(here(TOTALS), names))
        write("orders", "chair")
        in_time(lambda: exec(here(TOTALS), names))
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "totals"}
        totals = spark.read.format("stablelog").options(**options).load().collect()
        found = [(row.key, row.value) for row in totals]
        assert sorted(found) == [(b"chair", b"1"), (b"chair", b"2"), (b"lamp", b"1")]

        for topic in ("debits", "credits"):
            create_topic(broker.bootstrap, topic, 1, {"stablelog.order": "commit"})
            write(topic, topic)
        exec(here(CUT), names)
        assert rows_of(names["transfers"], tmp_path / "cuts") == [
            ("credits", "credits"),
            ("debits", "debits"),
        ]


def test_the_guide_reads_a_store(spark, tmp_path):
    with serving(tmp_path) as broker:
        stored = Stored(broker, f"file://{tmp_path}/store")
        stored.write("orders", 3)
        end = stored.manifest("orders").end_offset
    names = {"spark": spark}
    exec(STORED.replace("s3://bucket/prefix", stored.url), names)
    assert 0 < names["stored"].count() <= end
    assert "s3://bucket/prefix" in documented.page(GUIDE).partition("stablelog.spark.verify(")[2][:40]
    assert stablelog.spark.verify({"path": stored.url}).where("fault is not null").count() == 0


def test_the_guide_logs_in(spark, module_path):
    with secured(module_path) as server:
        create_topic(server.at["PLAINTEXT"], "orders", 1, {})
        program = LOGIN.replace("log.example.org:9094", server.at["SASL_SSL"])
        program = program.replace("/etc/stablelog/authority.pem", str(server.certificates.trust))
        names = {"spark": spark, "password": PASSWORD.replace('"', r"\"")}
        exec(program, names)
        assert names["orders"].count() == 0


def test_a_query_goes_on_where_another_has_stopped(spark, broker, tmp_path):
    """The checkpoint has the form that Spark gives it for any source. The connector's offsets lack the part `#topics`."""
    create_topic(broker.bootstrap, "moved", 2, {})

    def write(*values):
        with stablelog.connect(broker.bootstrap).transaction() as txn:
            for value in values:
                txn.write("moved", value, key=value)

    write("a", "b", "c")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "moved"}
    old = spark.readStream.format("stablelog").options(**options, startingOffsets="earliest").load()
    assert len(rows_of(old, tmp_path / "old-checkpoint")) == 3
    names = {"spark": spark}
    exec(POSITION, names)
    reached = json.loads(names["position"](tmp_path / "old-checkpoint"))
    assert sum(reached["moved"].values()) > 0
    (line,) = (path for path in (tmp_path / "old-checkpoint" / "offsets").iterdir() if path.name == "0")
    of_connector = json.dumps({"moved": reached["moved"]})
    line.write_text("\n".join([*line.read_text().splitlines()[:2], of_connector]))
    write("d", "e")
    program = MOVED.replace(ADDRESS, broker.bootstrap).replace('"orders"', '"moved"')
    exec(program.replace("old-checkpoint", f"{tmp_path}/old-checkpoint"), names)
    assert rows_of(names["orders"], tmp_path / "new") == [("moved", "d"), ("moved", "e")]


def test_the_formats_are_those_of_the_example():
    lines = [line[2:] for line in FORMATS.splitlines()]
    assert lines[0].replace('kafka")', 'stablelog")') == lines[1]


def test_each_option_of_the_connector_is_one_of_the_source():
    (table,) = re.findall(r"\| option of the connector \|.*\n\|[-|]*\n((?:\|.*\n)+)", documented.page(MOVING))
    for row in table.splitlines():
        names, here = row.strip("|").split(" | ")
        known = WITHOUT_EFFECT if "without effect, with" in here else OPTIONS
        for name in re.findall(r"`([\w.]+)`", names):
            assert name in known or name == "kafka.security.protocol", name
    assert not set(OPTIONS) & set(REFUSED)


def test_every_block_of_the_guides_is_run():
    for name in OTHERS:
        importlib.import_module(name)
    blocks = [(page, block) for page in (GUIDE, MOVING) for block in documented.blocks(page)]
    missing = [f"{page}:\n{block}" for page, block in blocks if (page, block) not in documented.taken]
    assert not missing, "\n".join(missing)
