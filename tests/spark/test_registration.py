"""`format("stablelog")` in a virtual environment that is not activated, in which Spark does not find it by itself.

Each test runs a program with the interpreter of such an environment, while the first `python3` of the PATH is that of an
environment without stablelog: this is how a cron job, a service or an editor runs it.
"""

import os
import re
import subprocess
import sys
import textwrap
import venv

import pytest

import stablelog
from stablelog.errors import UnavailableError
from stablelog.spark import registration
from stablelog.testing.topics import create_topic
from tests.conftest import ROOT

pytestmark = pytest.mark.xdist_group("spark")
HEAD = """
import os, sys
import stablelog
from pyspark.sql import SparkSession
bootstrap, directory = sys.argv[1:]
log = {"kafka.bootstrap.servers": bootstrap}
builder = SparkSession.builder.config("spark.ui.enabled", "false")

def count(spark):
    return spark.read.format("stablelog").options(**log, subscribe="here").load().count()
"""
BY_HAND = """
spark = builder.master("local[2]").getOrCreate()
try:
    count(spark)
except Exception as error:
    print("before", "DATA_SOURCE_NOT_FOUND" in str(error))
settings = sorted(spark.sparkContext.getConf().getAll())
stablelog.spark.register()
print("settings", settings == sorted(spark.sparkContext.getConf().getAll()), spark.sparkContext.pythonExec)
print("batch", count(spark))
"""
BY_HAND_AND_STREAM = """
spark = builder.master("local[2]").getOrCreate()
stablelog.spark.register()
rows = spark.readStream.format("stablelog").options(**log, subscribe="here", startingOffsets="earliest").load()
sink = rows.select("key", "value").writeStream.format("stablelog").options(**log, topic="there")
query = sink.option("checkpointLocation", directory).trigger(availableNow=True).start()
query.awaitTermination()
print("stream", spark.read.format("stablelog").options(**log, subscribe="there").load().count())
"""
BY_SESSION = """
spark = stablelog.spark.session(master="local[2]")
print("batch", count(spark), os.environ["PYSPARK_PYTHON"] == sys.executable)
"""
BY_VARIABLE = """
os.environ["PYSPARK_PYTHON"] = sys.executable
print("batch", count(builder.master("local[2]").getOrCreate()))
"""
BY_CONNECT = """
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = builder.remote("local[2]").getOrCreate()
print("batch", count(spark))
print("session", stablelog.spark.session() is spark)
try:
    spark.read.format("stablelog").options(**log, subscrib="x").load().count()
except Exception as error:
    print("error", "did you mean subscribe?" in str(error), "Traceback" in str(error))
"""


@pytest.fixture(scope="module")
def environments(module_path):
    """Returns the interpreter of an environment with stablelog, and a directory of programs whose `python3` has none."""
    for name in ("with", "without"):
        venv.create(module_path / name, with_pip=False, symlinks=True)
    (packages,) = (module_path / "with" / "lib").glob("python*/site-packages")
    places = [str(ROOT / "src"), *(place for place in sys.path if place.endswith("site-packages"))]
    (packages / "these.pth").write_text("\n".join(places) + "\n")
    return module_path / "with" / "bin" / "python", module_path / "without" / "bin"


@pytest.fixture(scope="module")
def bootstrap():
    with stablelog.serve() as broker:
        for topic in ("here", "there"):
            create_topic(broker.bootstrap, topic, 1, {})
        with stablelog.connect(broker.bootstrap).transaction() as txn:
            for number in range(3):
                txn.write("here", str(number), key=str(number))
        yield broker.bootstrap


@pytest.fixture
def printed(environments, bootstrap, tmp_path):
    """Returns a function that runs a program in the environment that is not activated, and returns what it prints."""
    python, elsewhere = environments

    def run(program):
        kept = {
            name: os.environ[name]
            for name in ("HOME", "JAVA_HOME", "STABLELOG_CACHE_DIR")
            if name in os.environ
        }
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(HEAD + program))
        done = subprocess.run(
            [python, path, bootstrap, tmp_path / "checkpoint"],
            env={**kept, "PATH": f"{elsewhere}{os.pathsep}/usr/bin{os.pathsep}/bin"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [
            line
            for line in done.stdout.splitlines()
            if re.match("before|settings|batch|stream|session|error", line)
        ]

    return run


@pytest.mark.night
def test_register_makes_it_known_in_a_session_that_runs(printed):
    assert printed(BY_HAND) == ["before True", "settings True python3", "batch 3"]


@pytest.mark.night
def test_a_registered_source_runs_a_stream_and_a_sink(printed):
    assert printed(BY_HAND_AND_STREAM) == ["stream 3"]


@pytest.mark.night
def test_a_session_of_stablelog_knows_it(printed):
    assert printed(BY_SESSION) == ["batch 3 True"]


@pytest.mark.night
def test_the_one_variable_is_sufficient(printed):
    assert printed(BY_VARIABLE) == ["batch 3"]


@pytest.mark.night
def test_with_spark_connect_the_variable_of_the_server_is_sufficient(printed):
    assert printed(BY_CONNECT) == ["batch 3", "session True", "error True False"]


def test_without_a_session_there_is_nothing_to_register_in(monkeypatch):
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))
    with pytest.raises(UnavailableError, match="there is no active Spark session"):
        registration.register()


class Session:
    """What `parallelism` asks of a session."""

    def __init__(self, default, **settings):
        self.sparkContext = self
        self.defaultParallelism = default
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}

    def getConf(self):
        return self._settings


class Registering(Session):
    """What `register` asks of a session; notes the interpreter of what is registered."""

    _jsparkSession = None  # noqa: N815 - Spark's name

    def __init__(self, master):
        super().__init__(1)
        self.master, self.pythonExec, self.dataSource = master, "python3", self
        self.interpreters = []

    def register(self, source):
        assert source.name() == "stablelog"
        self.interpreters.append(self.pythonExec)


@pytest.mark.parametrize(
    ("master", "variable", "interpreter"),
    [
        ("local[2]", None, sys.executable),
        ("local[2]", "/another/python", "python3"),
        ("spark://host:7077", None, "python3"),
    ],
)
def test_only_a_local_session_takes_the_interpreter_of_the_program(
    master, variable, interpreter, monkeypatch
):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    session = Registering(master)
    registration.register(session)
    assert session.interpreters == [interpreter]
    assert session.pythonExec == "python3"


@pytest.mark.parametrize(
    ("session", "count"),
    [
        (Session(7), 7),
        (Session(2, spark_executor_instances="10", spark_executor_cores="4"), 40),
        (Session(50, spark_executor_instances="10", spark_executor_cores="4"), 50),
    ],
)
def test_executors_that_have_not_started_count(session, count):
    assert registration.parallelism(session) == count


@pytest.mark.extended
def test_reads_of_a_registered_session_are_planned_for_its_cores(spark, stablelog_broker, monkeypatch):
    """17 MiB are one task for one core, and two tasks for two and more."""
    topic = "for_many_cores"
    create_topic(stablelog_broker.bootstrap, topic, 1, {})
    with stablelog.connect(stablelog_broker.bootstrap).transaction() as txn:
        for _ in range(40):
            txn.write(topic, os.urandom(1 << 19), key="k")
    session = spark.newSession()
    monkeypatch.setattr(registration, "parallelism", lambda _: 1)

    def tasks(**more):
        options = {"kafka.bootstrap.servers": stablelog_broker.bootstrap, "subscribe": topic, **more}
        return session.read.format("stablelog").options(**options).load().rdd.getNumPartitions()

    registration.register(session)
    assert tasks() == 1
    assert tasks(parallelism="2") == 2
    monkeypatch.setattr(registration, "parallelism", lambda _: 2)
    registration.register(session)
    assert tasks() == 2
