"""What is said of the settings of Kafka's clients that a job of Spark's Kafka connector brings along."""

import logging
import re
import subprocess
import sys

import pytest

from stablelog.client.core.security import read_security_settings
from stablelog.errors import UsageError
from stablelog.spark import kafka_settings
from stablelog.spark.data_source import StablelogDataSource
from stablelog.spark.kafka_settings import REFUSED, WITHOUT_EFFECT
from stablelog.spark.local_session import SETTINGS
from stablelog.spark.option_table import OPTIONS
from stablelog.spark.options import read_options, warn_without_effect, write_options
from tests import documented

DOC = documented.page("spark-options.md")
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
    assert read_options({**READ, name: "1"}) == read_options(READ)
    assert write_options({**WRITE, name.lower(): "1"}) == write_options(WRITE)


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


JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="secret!";'
LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.SASL.jaas.config": JAAS,
    "kafka.ssl.truststore.location": "/ca.pem",
}


def test_the_settings_of_tls_and_sasl_are_those_of_the_client():
    wanted = read_security_settings(
        {name.lower().removeprefix("kafka."): value for name, value in LOGIN.items()}
    )
    for ask, given in ((read_options, READ), (write_options, WRITE)):
        options = ask({**given, **LOGIN})
        assert options.security == wanted
        assert "secret!" not in repr(options)
        assert ask({**given, "kafka.security.protocol": "PLAINTEXT"}).security == ask(given).security


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"kafka.security.protocol": "tls"}, "kafka.security.protocol is none of PLAINTEXT, SSL"),
        (
            {"kafka.ssl.key.pasword": "secret!"},
            "kafka.ssl.key.pasword is unknown; did you mean kafka.ssl.key.password",
        ),
        (
            {"kafka.security.protocol": "PLAINTEXT"},
            "kafka.sasl.jaas.config has no effect|kafka.ssl.truststore.location",
        ),
        ({"sasl.password": "secret!"}, "have the prefix kafka., so give kafka.sasl.password"),
        ({"kafka.ssl.truststore.password": "secret!"}, "kafka.ssl.truststore.password is not supported"),
        ({"kafka.sasl.mechanism": "GSSAPI"}, "kafka.sasl.mechanism is none of PLAIN"),
    ],
)
def test_a_wrong_setting_of_tls_or_sasl_is_refused_without_a_secret(more, told):
    for ask, given in ((read_options, READ), (write_options, WRITE)):
        with pytest.raises(UsageError, match=told) as refused:
            ask({**given, **LOGIN, **more})
        assert "secret!" not in str(refused.value)


def test_a_private_key_that_spark_would_show_is_refused():
    """Spark hides passwords in plans and in its event log, and shows keys."""
    key = "-----BEGIN {0}PRIVATE KEY-----\\nsecret!\\n-----END {0}PRIVATE KEY-----"
    for name in ("kafka.ssl.keystore.key", "kafka.SSL.keystore.key"):
        with pytest.raises(UsageError, match=r"give a file as kafka\.ssl\.keystore\.location") as refused:
            StablelogDataSource({name: key.format("")})
        assert "secret!" not in str(refused.value)
        StablelogDataSource({name: key.format("ENCRYPTED ")})


def test_the_documented_patterns_hide_options():
    """The form in which Spark Connect logs options was seen in the event log of Spark 4.3."""
    pattern = DOC.partition("'spark.redaction.string.regex=")[2].partition("'\n")[0]
    logged = """options {
  key: "kafka.sasl.jaas.config"
  value: "ScramLoginModule required password=\\"secret! \\\\\\"secret!\\";"
}
options {
  key: "subscribe"
  value: "orders"
}
options {
  key: "store.account_key"
  value: "secret!"
}"""
    hidden = re.sub(pattern, "*", logged)
    assert "secret!" in logged
    assert "secret!" not in hidden
    assert 'value: "orders"' in hidden
    pattern = SETTINGS["spark.sql.redaction.options.regex"]
    assert pattern.replace("|", r"\|") in DOC
    shown = (
        "kafka.ssl.keystore.key",
        "kafka.sasl.jaas.config",
        "kafka.sasl.password",
        "store.account_key",
        "URL",
    )
    assert all(re.search(pattern, name) for name in shown)
    assert not any(re.search(pattern, name) for name in ("kafka.bootstrap.servers", "subscribe", "topic"))


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_would_change_the_result_is_refused_with_what_to_do(name):
    with pytest.raises(UsageError, match=f"stablelog has no option {name}: .+"):
        read_options({**READ, name: "x"})


def test_no_setting_stands_in_two_tables():
    names = [name.lower() for table in (OPTIONS, WITHOUT_EFFECT, REFUSED) for name in table]
    assert len(names) == len(set(names))


@pytest.mark.extended
def test_a_warning_reaches_a_user_who_has_set_up_no_logging():
    script = (
        "from stablelog.spark.data_source import StablelogDataSource as Source;"
        "[Source({'kafka.acks': '1'}) for _ in range(2)]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.count("kafka.acks (every acknowledged record is durable)") == 1, done.stderr
