"""The pytest plugin as a user has it: the examples of its document pass, and wrong settings are told."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import USERS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "pytest.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.M | re.S)
SETTINGS = re.findall(r"^```toml\n(.*?)^```$", DOCUMENT, re.M | re.S)
TIMEOUT_S = 300


def pytest_run(directory, *tests, settings=SETTINGS[0]):
    """Run pytest in a directory with these test files, as a user does. Returns what it prints, and the exit code."""
    (directory / "pyproject.toml").write_text(settings)
    for number, test in enumerate(tests):
        (directory / f"test_{number}.py").write_text(test)
    # Tests of Spark let the processes of this worker find a hypothesis that cannot be imported.
    paths = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one != str(USERS)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(directory)],
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
from stablelog.client.cluster import Cluster
from stablelog.testing.topics import create_topic

def test_partitions(stablelog_broker, stablelog_faults):
    for broker in (stablelog_broker, stablelog_faults):
        create_topic(broker.bootstrap, "t", -1, {})
        with Cluster(broker.bootstrap) as cluster:
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
