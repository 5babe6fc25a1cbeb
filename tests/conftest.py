"""One Spark session, and one Apache Kafka, serve all tests that use them, in one process: each takes seconds to start."""

import functools
import gc
import os
import re
import shutil
import sys
from pathlib import Path, PurePath

import pytest
from hypothesis import HealthCheck, settings

from tests import memory_limit
from tests.durations import Durations
from tests.failed_at_once import FailedAtOnce
from tests.free_space import why_too_little
from tests.quick_java import QUICK_JAVA
from tests.scale import beyond_samples, examples
from tests.shared_compilation import import_part

ROOT = Path(__file__).parents[1]
USERS = Path(__file__).parent / "spark" / "users"

# How long an example takes is the machine's affair: a loaded one would fail what is right.
settings.register_profile(
    "any machine", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A broker of a test may take long to answer on a loaded machine. Tests of the timeout set their own.
os.environ["STABLELOG_TIMEOUT"] = "60"


def pytest_addoption(parser):
    parser.addoption(
        "--minutes-limit", type=float, help="fail if all tests together take more minutes, on all workers"
    )


@pytest.hookimpl(trylast=True)  # pytest's own hook makes the reporter
def pytest_configure(config):
    capture = config.pluginmanager.getplugin("capturemanager")
    memory_limit.watch(lambda: capture.suspend(in_=True))
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist reports to the controller
        config.pluginmanager.register(Durations(config.getoption("minutes_limit")), "durations")
        terminal = config.pluginmanager.getplugin("terminalreporter")
        config.pluginmanager.register(FailedAtOnce(terminal), "failed at once")


# What makes a test one of `make test-all`: see `pytest_collection_modifyitems`.
MAKES_EXTENDED = re.compile(r"\bmark\.(?:extended|sampled|java)\b")
ALL_EXTENDED = re.compile(r"^pytestmark = .*\bmark\.(?:extended|java)\b", re.M)


def pytest_ignore_collect(collection_path, config):
    """Leave out the modules of which `make test` or `make test-all` runs no test: each worker would import them."""
    return True if is_left_out(collection_path, config) else None  # None: the next hook decides


def is_left_out(path, config):
    if path.suffix != ".py" or config.option.markexpr not in ("extended", "not extended"):
        return False
    text = path.read_text()
    if config.option.markexpr == "extended":
        return MAKES_EXTENDED.search(text) is None
    return ALL_EXTENDED.search(text) is not None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect without the collector of garbage: nearly all that is made stays."""
    config = session.config
    if hasattr(config, "workerinput") and [Path(each).resolve() for each in config.args] == [ROOT / "tests"]:
        paths = (path for path in Path(__file__).parent.rglob("test_*.py") if not is_left_out(path, config))
        import_part(paths, ROOT, config.workerinput)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_xdist_auto_num_workers():
    """Two workers for each core: many tests wait for a child process or a client's back-off."""
    return 2 * len(os.sched_getaffinity(0))


@pytest.hookimpl(tryfirst=True)  # pytest's own hook reads the marks, and pytest-xdist's the groups
def pytest_collection_modifyitems(items):
    for item in beyond_samples(items):
        item.add_marker(pytest.mark.extended)
    for item in items:
        if item.get_closest_marker("java"):
            item.add_marker(pytest.mark.extended)
        if item.get_closest_marker("night") and "STABLELOG_NIGHT" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="runs by night: set STABLELOG_NIGHT=1"))
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
        if "shared_kafka" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("shared kafka"))


def pytest_collection_finish():
    """Leave the tests themselves out of each later collection of garbage: they are more than what a test makes."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    why = why_too_little()
    if why is not None:
        item.session.shouldfail = why  # ends the run after this test
        pytest.fail(why, pytrace=False)


@pytest.fixture(scope="module")
def module_path(tmp_path_factory, request):
    """A directory for the fixtures of a module, as `tmp_path` is for one test: removed unless a test has failed."""
    failed_before = request.session.testsfailed
    directory = tmp_path_factory.mktemp(PurePath(request.node.name).stem)
    yield directory
    if request.session.testsfailed == failed_before:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def no_broker_has_a_fault():
    """What a broker logs as its own fault fails the tests, also where the clients have borne it."""
    from stablelog.embedded import EmbeddedBroker

    faults = {}

    def watched(end):
        @functools.wraps(end)
        def end_and_read_log(broker):
            end(broker)
            log = broker.log_tail(sys.maxsize)
            if "Traceback (most recent call last)" in log:
                faults[broker.data] = log

        return end_and_read_log

    with pytest.MonkeyPatch.context() as patched:
        for name in ("stop", "kill"):
            patched.setattr(EmbeddedBroker, name, watched(getattr(EmbeddedBroker, name)))
        yield
    assert not faults, "\n\n".join(f"the broker on {data}:\n{log}" for data, log in faults.items())


@pytest.fixture(scope="session")
def shared_kafka(tmp_path_factory):
    """A running Apache Kafka with its default settings, for tests that neither stop it nor change its settings."""
    from peers import apache_kafka
    from tests.java.dump import SHORT_LIVED

    try:
        broker = apache_kafka.KafkaBroker(tmp_path_factory.mktemp("kafka") / "data", {}, SHORT_LIVED)
        broker.start()
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(f"Apache Kafka is not to be had: {missing}")
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from stablelog.spark.local_session import SETTINGS, session

    # Workers import what the tests define, and not what users do not have. The JVM hands its PYTHONPATH to them; other
    # processes that a test of this session starts do not get it.
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    warehouse = tmp_path_factory.mktemp("warehouse")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join([str(USERS), str(ROOT), str(ROOT / "src"), *known]))
        made = session(
            "stablelog tests",
            "local[2,2]",  # a task may be tried twice
            spark_sql_warehouse_dir=str(warehouse),
            spark_sql_shuffle_partitions="2",
            spark_ui_enabled="false",
            spark_sql_streaming_checkpoint_fileChecksum_enabled="false",  # what it guards against is no test's subject
            spark_driver_extraJavaOptions=f"{SETTINGS['spark.driver.extraJavaOptions']} {QUICK_JAVA}",
            spark_python_authenticate_socketTimeout="300s",  # a test may be kept waiting, too
        )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
