"""The pytest plugin as a user has it: the examples of its document pass, and wrong settings are told."""

import os
import re
import subprocess
import sys

import pytest

from tests import documented
from tests.conftest import USERS
from tests.waiting import until

pytestmark = pytest.mark.extended

BLOCKS = documented.take("tests.md", "def test_")
SETTINGS = documented.take("tests.md", "[tool.pytest.ini_options]")
TIMEOUT_S = 300


def pytest_run(directory, *tests, settings=SETTINGS[0], options=()):
    """Run pytest in a directory with these test files, as a user does. Returns what it prints, and the exit code."""
    (directory / "pyproject.toml").write_text(settings)
    for number, test in enumerate(tests):
        (directory / f"test_{number}.py").write_text(test)
    # Tests of Spark let the processes of this worker find a hypothesis that cannot be imported.
    paths = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one != str(USERS)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--strict-markers",
            "-p",
            "no:cacheprovider",
            *options,
            str(directory),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.stdout + done.stderr, done.returncode


def test_the_examples_of_the_document_pass(tmp_path):
    libraries = {re.search(r"^from (\w+)", block, re.M)[1] for block in BLOCKS if "from" in block}
    assert libraries == {"confluent_kafka", "aiokafka", "kafka"}
    printed, code = pytest_run(tmp_path, *BLOCKS)
    assert code == 0, printed
    assert f"{len(BLOCKS)} passed" in printed


def test_settings_of_the_configuration_apply_to_both_brokers(tmp_path):
    test = """
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.testing.topics import create_topic

def test_partitions(stablelog_broker, stablelog_faults):
    for broker in (stablelog_broker, stablelog_faults):
        create_topic(broker.bootstrap, "t", -1, {})
        with BlockingCluster(broker.bootstrap) as cluster:
            assert cluster.partition_counts(["t"]) == {"t": 3}
"""
    printed, code = pytest_run(tmp_path, test)
    assert code == 0, printed


@pytest.mark.parametrize(
    ("settings", "test", "message"),
    [
        (
            "num.partitions",
            "def test_it(stablelog_broker): pass",
            "has the line 'num.partitions': write name=value",
        ),
        (
            "num.partition=3",
            "def test_it(stablelog_broker): pass",
            "'num.partition'; did you mean num.partitions?",
        ),
        (
            "",
            "import pytest\n@pytest.mark.stablelog(num_partition=3)\ndef test_it(stablelog_faults): pass",
            "'num_partition'; did you mean",
        ),
        (
            "",
            "import pytest\n@pytest.mark.stablelog(3)\ndef test_it(stablelog_faults): pass",
            "only keyword arguments",
        ),
    ],
    ids=["no value", "wrong name", "wrong name of a marker", "no keyword"],
)
def test_a_wrong_setting_is_told(tmp_path, settings, test, message):
    given = f"[tool.pytest.ini_options]\nstablelog_settings = {[settings] if settings else []}"
    printed, code = pytest_run(tmp_path, test, settings=given)
    assert code == 1
    assert message in printed


def test_the_plugin_costs_nothing_where_it_is_not_used(tmp_path):
    test = """
import sys

def test_modules():
    assert "stablelog.testing.pytest_plugin" in sys.modules
    mine = {name for name in sys.modules if name.partition(".")[0] in ("stablelog", "kio", "asyncio", "uvloop")}
    assert mine == {"stablelog", "stablelog.testing", "stablelog.testing.pytest_plugin"}
"""
    printed, code = pytest_run(
        tmp_path, test, options=["-p", "no:asyncio", "-p", "no:anyio", "-p", "no:xdist"]
    )
    assert code == 0, printed


KILLING = """
import os, signal, pytest

@pytest.fixture
def killed(stablelog_broker, stablelog_faults, stablelog_topic):
    stablelog_topic("orders")
    {kill}
    yield
    {kill_after}

def test_it(killed):
    {kill_in}
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("place", "kill", "workers"),
    [("kill", KILL, 0), ("kill_in", KILL, 2), ("kill_after", KILL, 0), ("kill_in", "os._exit(3)", 2)],
    ids=["fixture", "worker", "after", "exit of a worker"],
)
def test_a_test_run_that_is_killed_leaves_nothing(tmp_path, monkeypatch, place, kill, workers):
    """A worker of pytest-xdist that is killed is replaced."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    parts = {"kill": "pass", "kill_in": "pass", "kill_after": "pass"} | {place: kill}
    test = KILLING.format(**parts)
    (tmp_path / "run").mkdir()
    printed, code = pytest_run(tmp_path / "run", test, options=["-n", f"{workers}"])
    assert code, printed
    until(lambda: not list(temporary.glob("stablelog-*")), printed)
