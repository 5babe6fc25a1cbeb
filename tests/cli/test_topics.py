"""`stablelog topics trim`."""

import pytest

from tests.cli.test_cli import answer, opened
from tests.clients.drivers import unique
from tests.commands import run


@pytest.fixture
def topic(stablelog_broker):
    """A topic with the timestamps 1790000000000 to 1790000000009 in partition 0, and two records in partition 1."""
    at, name = stablelog_broker.bootstrap, unique("trim")
    answer("topics", "create", name, "--partitions", "2", "--config", "retention.ms=-1", bootstrap=at)
    lines = [
        f'{{"value": "x", "partition": 0, "timestamp_ms": {1_790_000_000_000 + n}}}\n' for n in range(10)
    ]
    lines += ['{"value": "x", "partition": 1, "timestamp_ms": 1}\n'] * 2
    answer("produce", name, "--input", "json", bootstrap=at, given="".join(lines))
    return name


def trim(at, topic, *words):
    (found,) = answer("topics", "trim", topic, *words, bootstrap=at)
    return {
        row["partition"]: (row["start"], row["new_start"], row["deleted_offsets"])
        for row in found["partitions"]
    }


def starts(at, topic):
    return [row["start"] for row in answer("topics", "describe", topic, bootstrap=at)[0]["partitions"]]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "deleted"),
    [
        (("--before", "4"), (4, 2)),
        (("--before", "4", "-p", "0"), (4,)),
        (("--before", "-3"), (7, 0)),
        (("--before", "@1790000000003"), (3, 2)),
        (("--before", "@2026-09-21T14:13:20.003Z"), (3, 2)),
        (("--before", "end"), (10, 2)),
        (("--before", "earliest"), (0, 0)),
    ],
)
def test_records_are_deleted_with_execute_only(stablelog_broker, topic, words, deleted):
    at = stablelog_broker.bootstrap
    expected = {index: (0, count, count) for index, count in enumerate(deleted)}
    assert trim(at, topic, *words) == expected
    assert starts(at, topic) == [0, 0]
    assert trim(at, topic, *words, "--execute") == expected
    assert starts(at, topic) == [*deleted, 0][:2]
    again = trim(at, topic, *words, "--execute")
    assert again[0] == (deleted[0], deleted[0], 0) or words[1] == "-3"


@pytest.mark.extended
def test_no_record_of_an_open_transaction_is_deleted(stablelog_broker, topic):
    producer = opened(stablelog_broker.bootstrap, unique("holder"), topic, partition=0)
    assert trim(stablelog_broker.bootstrap, topic, "--before", "latest", "-p", "0") == {0: (0, 10, 10)}
    producer.abort_transaction(60)


def test_a_dry_run_says_so(stablelog_broker, topic):
    at = stablelog_broker.bootstrap
    words = ("topics", "trim", topic, "--before", "1")
    assert run(*words, bootstrap=at).stdout.endswith("dry run: nothing was changed; --execute does it\n")
    assert "dry run" not in run(*words, "--execute", bootstrap=at).stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--before", "soon"), "--before soon is not valid"),
        (("--before", "1", "-p", "2"), "has no partition 2, only 0 to 1"),
        ((), "'--before'"),
    ],
)
def test_options_that_are_not_valid_are_refused(stablelog_broker, topic, words, why):
    done = run("topics", "trim", topic, *words, bootstrap=stablelog_broker.bootstrap)
    assert done.returncode == 2
    assert why in done.stderr
