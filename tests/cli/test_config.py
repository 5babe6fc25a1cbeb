"""`stablelog config show`."""

import pytest

import stablelog
from stablelog.broker.settings.table import FIXED_BROKER_SETTINGS, SETTINGS
from tests.cli.test_cli import answer
from tests.clients.drivers import unique
from tests.commands import run

pytestmark = pytest.mark.extended


def show(at, *words):
    (found,) = answer("config", "show", *words, bootstrap=at)
    return {row["setting"]: (row["value"], row["source"]) for row in found["settings"]}


@pytest.fixture(scope="module")
def broker(module_path):
    with stablelog.serve(module_path / "data", num_partitions=3) as made:
        yield made


def test_the_settings_of_the_broker_have_their_sources(broker):
    found = show(broker.bootstrap)
    assert found.keys() == {setting.name for setting in SETTINGS} | FIXED_BROKER_SETTINGS.keys()
    assert found["default.replication.factor"] == ("1", "default")
    assert found["num.partitions"] == ("3", "static broker")
    assert found["max.connections"] == ("2000", "default")
    changed = show(broker.bootstrap, "--changed")
    assert set(changed) == {"listeners", "num.partitions"}


def test_the_settings_of_a_topic_have_their_sources(broker):
    at, name = broker.bootstrap, unique("t")
    answer("topics", "create", name, "--config", "retention.ms=7", bootstrap=at)
    found = show(at, "--topic", name)
    assert found["retention.ms"] == ("7", "topic")
    assert found["cleanup.policy"] == ("delete", "default")
    assert show(at, "--topic", name, "--changed") == {"retention.ms": ("7", "topic")}
    assert f"settings of topic {name}" in run("config", "show", "--topic", name, bootstrap=at).stdout
    missing = run("config", "show", "--topic", "missing", bootstrap=at)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "there is no topic 'missing'" in missing.stderr
