"""The programs of docs/guides/spark.md that write tables, as they are printed. A repeated micro-batch adds no row.

The packages that write the tables are none of stablelog's: a test whose package is missing is skipped and names it.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pyspark
import pytest

import stablelog
from peers import apache_kafka, delta_lake
from stablelog.testing.topics import create_topic
from tests import documented
from tests.quick_java import QUICK_JAVA
from tests.spark.starting import in_time

pytestmark = pytest.mark.spark
PAGE = documented.page("spark.md")
(STREAM,) = documented.take("spark.md", "checkpoints/orders")
SINKS = documented.take("spark.md", "def write(batch, batch_id)") + documented.take(
    "spark.md", "checkpoints/copies"
)
BATCHES = ((0, 1, 2), (3, 4))  # the values of the records that each run of a program finds
# The end of the program that writes Delta tables: the values in its tables.
SHOWN = """
import json
from pathlib import Path

tables = [spark.read.format("delta").load(str(path)).collect() for path in Path("tables").iterdir()]
print(json.dumps([[row.value for row in table] for table in tables]))
"""


def program(section, bootstrap, topic):
    """The program of a section, for a broker and a topic of this test."""
    (prose,) = re.findall(rf"^### {section}\n(.*?)^##", PAGE, re.S | re.M)
    sink, *more = [block for block in SINKS if f"```python\n{block}```" in prose]
    session = "session(**DELTA)" if "`stablelog.spark.session(**DELTA)`" in prose else "session()"
    text = "".join([sink, STREAM.replace("session()", session), *more])
    for printed, here in {
        "127.0.0.1:9092": bootstrap,
        '"subscribe": "orders"': f'"subscribe": "{topic}"',
    }.items():
        assert text.count(printed) == 1
        text = text.replace(printed, here)
    return text


def write(bootstrap, topic, values):
    with stablelog.connect(bootstrap).transaction() as txn:
        for value in values:
            txn.write(topic, key=None, value=str(value))


def without_last_commits(directory):
    """Leave the checkpoints as a kill does between the write and Spark's own commit: Spark repeats the micro-batch.
    Return the files that Spark then writes again.
    """
    removed = []
    for commits in directory.glob("checkpoints/*/commits"):
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        removed.append(commits / str(last))
        removed[-1].unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
    return removed


def repeated(run, read, bootstrap, topic, directory):
    """Run a program for new records, and again so that Spark repeats the micro-batch, and compare the rows."""
    written = []
    for values in BATCHES:
        write(bootstrap, topic, values)
        written += values
        run()
        assert sorted(int(value) for value in read()) == written
        removed = without_last_commits(directory)
        run()
        assert removed
        assert all(path.exists() for path in removed), "Spark has not repeated the micro-batch"
        assert sorted(int(value) for value in read()) == written


@pytest.fixture(scope="module")
def jars():
    """The JARs of Delta Lake."""
    try:
        return delta_lake.jars(pyspark.__version__)
    except apache_kafka.NotAvailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def bootstrap():
    with stablelog.serve() as broker:
        yield broker.bootstrap


@pytest.fixture
def topic(request, bootstrap):
    create_topic(bootstrap, request.node.name, 1, {})
    return request.node.name


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The directory in which a program runs, and to which its relative paths belong."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def local(spark, here):
    """The relative checkpoint of a program belongs to the directory of the program, and not to that of the session."""
    return lambda text: text.replace('"checkpoints/orders"', f'"{here}/checkpoints/orders"')


def needs(*packages):
    """Skip a test before its fixtures if a package is missing, and name the package."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@needs("deltalake")
def test_a_table_of_delta_rs_gets_each_row_once(spark, bootstrap, topic, here, local):
    import deltalake

    text = local(program("delta-rs", bootstrap, topic))

    def read():
        return deltalake.DeltaTable("tables/orders").to_pyarrow_table()["value"].to_pylist()

    repeated(lambda: in_time(lambda: exec(text, {})), read, bootstrap, topic, here)


@needs("pyiceberg", "sqlalchemy")
def test_a_table_of_pyiceberg_gets_each_row_once(spark, bootstrap, topic, here, local):
    from pyiceberg import catalog as catalogs

    names = {}
    text = local(program("pyiceberg", bootstrap, topic))

    def table():
        return catalogs.load_catalog("shop", **names["CATALOG"]).load_table(names["TABLE"])

    def run():
        in_time(lambda: exec(text, names))
        table().append(table().scan().to_arrow().slice(0, 0))  # another program makes snapshots, too

    def read():
        return table().scan().to_arrow()["value"].to_pylist()

    repeated(run, read, bootstrap, topic, here)


@pytest.mark.night
@pytest.mark.timeout(900)
def test_a_table_of_delta_lake_gets_each_row_once(jars, bootstrap, topic, here):
    text = program("Delta Lake", bootstrap, topic)
    fetched = f'"spark.jars.packages": "{delta_lake.coordinates()}"'
    assert text.count(fetched) == 1
    text = text.replace(fetched, f'"spark.jars": "{",".join(map(str, jars))}"')
    (here / "program.py").write_text(text + SHOWN)
    found = []

    def run():
        done = subprocess.run(
            [sys.executable, "program.py"],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": QUICK_JAVA},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        tables = json.loads(done.stdout.splitlines()[-1])
        assert len(tables) == 2  # of foreachBatch, and of Delta's own sink
        assert sorted(tables[0]) == sorted(tables[1])
        found[:] = tables[0]

    repeated(lambda: in_time(run), lambda: found, bootstrap, topic, here)
