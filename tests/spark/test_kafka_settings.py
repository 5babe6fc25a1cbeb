"""What is said of the settings of Kafka's clients that a job of Spark's Kafka connector brings along."""

import logging
import subprocess
import sys

import pytest

from stablelog.errors import UsageError
from stablelog.spark import kafka_settings
from stablelog.spark.kafka_settings import REFUSED, WITHOUT_EFFECT
from stablelog.spark.option_table import OPTIONS
from stablelog.spark.options import read_options, warn_without_effect, write_options

READ = {"bootstrap": "h:1", "subscribe": "x"}
WRITE = {"bootstrap": "h:1", "topic": "x"}


@pytest.fixture
def warnings(caplog, monkeypatch):
    """A process that has not warned yet; returns the texts of its warnings."""
    monkeypatch.setattr(kafka_settings, "WARNED", set())
    caplog.set_level(logging.WARNING, "stablelog")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_setting_without_effect_is_taken_by_reads_and_writes(name):
    value = "PLAINTEXT" if name == "kafka.security.protocol" else "1"
    assert read_options({**READ, name: value}) == read_options(READ)
    assert write_options({**WRITE, name.lower(): value}) == write_options(WRITE)


def test_a_process_warns_once_of_each(warnings):
    given = {**READ, "kafka.max.poll.records": "5", "KAFKA.session.timeout.ms": "9"}
    warn_without_effect(given)
    warn_without_effect(given)
    (warning,) = warnings()
    assert "kafka.max.poll.records (the source reads batches and does not poll records)" in warning
    assert "kafka.session.timeout.ms (the source uses no consumer group)" in warning
    warn_without_effect({**given, "kafka.acks": "1"})
    assert "kafka.acks" in warnings()[1]
    assert "poll" not in warnings()[1]


def test_what_has_an_effect_or_is_as_it_was_is_not_warned_of(warnings):
    warn_without_effect({**READ, "kafka.security.protocol": "PLAINTEXT", "kafka.client.id": "me"})
    assert warnings() == []


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "sasl_ssl", ""])
def test_a_protocol_that_is_not_spoken_is_refused_and_named(protocol):
    for ask, given in ((read_options, READ), (write_options, WRITE)):
        with pytest.raises(UsageError, match=f"protocol={protocol}: TLS and SASL are not supported yet"):
            ask({**given, "kafka.security.protocol": protocol})


@pytest.mark.parametrize(
    "name", ["kafka.sasl.jaas.config", "kafka.ssl.truststore.location", "kafka.SSL.key.password"]
)
def test_a_setting_of_tls_or_sasl_is_refused_without_its_value(name):
    with pytest.raises(UsageError, match="TLS and SASL are not supported yet") as refused:
        read_options({**READ, "kafka.security.protocol": "PLAINTEXT", name: "secret!"})
    assert "secret!" not in str(refused.value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_would_change_the_result_is_refused_with_what_to_do(name):
    with pytest.raises(UsageError, match=f"stablelog has no option {name}: .+"):
        read_options({**READ, name: "x"})


def test_no_setting_stands_in_two_tables():
    names = [name.lower() for table in (OPTIONS, WITHOUT_EFFECT, REFUSED) for name in table]
    assert len(names) == len(set(names))


def test_a_warning_reaches_a_user_who_has_set_up_no_logging():
    script = (
        "from stablelog.spark.data_source import StablelogDataSource as Source;"
        "[Source({'kafka.acks': '1'}) for _ in range(2)]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.count("kafka.acks (every acknowledged record is durable)") == 1, done.stderr
