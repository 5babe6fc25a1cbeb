"""Settings of a client by Kafka's names: each is read, and a wrong one is refused by name."""

import re

import pytest

from stablelog.batch.header import Codec
from stablelog.client.core.settings import ClientSettings, read_client_settings
from stablelog.errors import UsageError


def test_settings_are_read_as_text_and_as_numbers():
    assert read_client_settings(None) == ClientSettings()
    found = read_client_settings(
        {
            "client.id": "shop",
            "compression.type": "zstd",
            "default.api.timeout.ms": "1500",
            "request.timeout.ms": 2000,
            "retry.backoff.ms": 0,
            "retry.backoff.max.ms": "50",
        }
    )
    assert (found.client_id, found.compression, found.deadline_s) == ("shop", Codec.ZSTD, 1.5)
    assert (found.timeout_s, found.backoff_s) == (2.0, (0.0, 0.05))
    assert read_client_settings({"retry.backoff.ms": 5000}).backoff_s == (5.0, 5.0)
    assert read_client_settings(None, 3).deadline_s == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"client.idd": "x"}, "the setting client.idd is unknown; did you mean client.id?"),
        ({"nothing.like.it": "x"}, "nothing.like.it"),
        ({"client.id": "x" * 256}, "is not valid: a text of at most 255 bytes"),
        (
            {"compression.type": "rar"},
            "compression.type='rar' is not valid: one of none, gzip, snappy, lz4, zstd",
        ),
        (
            {"request.timeout.ms": 0},
            "request.timeout.ms=0 is not valid: a number of milliseconds from 1 to 2147483647",
        ),
        (
            {"retry.backoff.ms": 2**31},
            "retry.backoff.ms=2147483648 is not valid: a number of milliseconds from 0 to",
        ),
        ({"default.api.timeout.ms": True}, "default.api.timeout.ms=True is not valid"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name_with_what_is_right(given, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        read_client_settings(given)


def test_settings_that_are_no_mapping_of_names_are_refused():
    with pytest.raises(TypeError, match="settings must be a mapping from names to values, and not list"):
        read_client_settings([("client.id", "x")])
    with pytest.raises(TypeError, match=r"a name of a setting must be text \(str\), and not int \(5\)"):
        read_client_settings({5: "x"})


def test_the_deadline_is_given_once():
    with pytest.raises(
        UsageError, match=r"the deadline is given twice: as deadline and as default.api.timeout.ms"
    ):
        read_client_settings({"default.api.timeout.ms": 3000}, 3)


def test_the_settings_of_the_caller_stay_as_they_are():
    given = {"client.id": "shop", "retry.backoff.ms": 5}
    read_client_settings(given)
    assert given == {"client.id": "shop", "retry.backoff.ms": 5}
