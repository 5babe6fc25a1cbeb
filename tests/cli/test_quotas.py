"""`stablelog quotas`."""

import pytest

import stablelog
from tests.cli.test_cli import answer
from tests.commands import run


@pytest.fixture(scope="module")
def at(module_path):
    with stablelog.serve(module_path / "data") as broker:
        yield broker.bootstrap


def listed(at, *options):
    rows = answer("quotas", "list", *options, bootstrap=at)[0]
    return [tuple(row[name] for name in ("user", "client_id", "ip", "quota", "value")) for row in rows]


@pytest.mark.extended
def test_quotas_are_set_listed_and_removed(at):
    done = answer(
        "quotas", "set", "--user", "alice", "--default-client-id", "producer_byte_rate=1e6", bootstrap=at
    )
    assert done == [
        {
            "user": "alice",
            "client_id": "<default>",
            "ip": None,
            "quotas": [{"quota": "producer_byte_rate", "value": 1_000_000.0}],
        }
    ]
    answer(
        "quotas", "set", "--user", "alice", "request_percentage=12.5", "consumer_byte_rate=7", bootstrap=at
    )
    answer("quotas", "set", "--default-ip", "connection_creation_rate=1000", bootstrap=at)
    of_alice = [
        ("alice", None, None, "consumer_byte_rate", 7.0),
        ("alice", None, None, "request_percentage", 12.5),
        ("alice", "<default>", None, "producer_byte_rate", 1_000_000.0),
    ]
    of_addresses = [(None, None, "<default>", "connection_creation_rate", 1000.0)]
    assert listed(at) == of_addresses + of_alice
    assert listed(at, "--user", "alice") == of_alice
    assert listed(at, "--default-ip") == of_addresses
    table = run("quotas", "list", bootstrap=at).stdout
    assert "<default>" in table
    assert "producer_byte_rate" in table
    answer("quotas", "remove", "--user", "alice", "request_percentage", bootstrap=at)
    assert listed(at, "--user", "alice") == [of_alice[0], of_alice[2]]
    said = run("quotas", "remove", "--user", "alice", "--default-client-id", bootstrap=at)
    assert said.stdout == "removed all quotas of user 'alice', client-id <default>\n"
    answer("quotas", "remove", "--user", "alice", bootstrap=at)
    answer("quotas", "remove", "--default-ip", bootstrap=at)
    assert listed(at) == []


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["set", "producer_byte_rate=1"], "the options name no entity"),
        (["set", "--user", "a", "producer_byte_rate"], "is not a quota: write NAME=NUMBER"),
        (["set", "--user", "a", "producer_byte_rate=many"], "is not a quota: write NAME=NUMBER"),
        (["set", "--user", "a", "producer_byte_rate=-1"], "must be greater than 0"),
        (["set", "--user", "a", "nonsense=1"], "Invalid configuration key 'nonsense' for user 'a'"),
        (["set", "--user", "a", "--ip", "::1", "producer_byte_rate=1"], "cannot be combined"),
        (["set", "--user", "a", "--default-user", "producer_byte_rate=1"], "contradict each other"),
        (["remove", "--user", "a", "nonsense"], "there is no quota 'nonsense'"),
        (["list", "--user", "a", "--default-ip"], "cannot be combined"),
    ],
)
def test_what_is_not_valid_is_refused_with_the_reason(at, words, why):
    done = run("quotas", *words, bootstrap=at)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert listed(at) == []
