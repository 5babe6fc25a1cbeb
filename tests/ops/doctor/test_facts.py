"""Which values of settings a report shows."""

import pytest

from stablelog.ops.doctor.facts import HIDDEN, shown_value


@pytest.mark.parametrize(
    "name",
    [
        "ssl.key.password",
        "listener.name.internal.plain.sasl.jaas.config",
        "ssl.keystore.key",
        "delegation.token.secret.key",
        "some.credentials",
        "ldap.bind.pwd",
        "confluent.license",
        "schema.registry.basic.auth.user.info",
    ],
)
def test_a_name_that_secrets_have_hides_the_value_whatever_the_broker_says(name):
    assert shown_value(name, "alice-secret", is_secret=False) == HIDDEN


def test_a_secret_is_hidden_also_if_the_broker_left_it_out():
    assert shown_value("a.setting", "alice-secret", is_secret=True) == HIDDEN
    assert shown_value("a.setting", None, is_secret=True) == HIDDEN


@pytest.mark.parametrize(
    "value",
    [
        "https://alice:secret@host/path",
        "az://store/path?sig=secret",
        "s3://AKIA:ab/cd@bucket",
        "key:secret@host",
        "https://host/path#token=secret",
        "https://host/path;token=secret",
        "host; session.token = secret",
    ],
)
def test_a_value_with_a_login_or_with_parameters_is_hidden(value):
    assert shown_value("a.url", value, is_secret=False) == HIDDEN


@pytest.mark.parametrize(
    "value", ["https://host/path", "s3://bucket/prefix", "PLAINTEXT://a:1,SSL://b:2", "a;b"]
)
def test_another_url_is_shown(value):
    assert shown_value("a.url", value, is_secret=False) == value


def test_any_other_value_is_shown():
    assert shown_value("log.retention.ms", "1000", is_secret=False) == "1000"
    assert shown_value("log.retention.ms", None, is_secret=False) == ""
    assert shown_value("message.max.bytes.keyed", "7", is_secret=False) == "7"
