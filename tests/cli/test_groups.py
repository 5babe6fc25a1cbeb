"""`stablelog groups`: lists, describes and resets groups."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from stablelog.cli import groups
from stablelog.errors import UnavailableError
from tests.cli.test_cli import answer
from tests.clients.drivers import unique
from tests.commands import run
from tests.waiting import until


@pytest.fixture
def names(stablelog_broker):
    """Two topics with ten records in partition 0, of which a group has read five, and five in partition 1."""
    at, group = stablelog_broker.bootstrap, unique("group")
    topics = [unique("a"), unique("b")]
    producer = Producer({"bootstrap.servers": at, "log_level": 0})
    for topic in topics:
        answer("topics", "create", topic, "--partitions", "2", bootstrap=at)
        for number in range(15):
            producer.produce(topic, b"x", partition=number // 10, timestamp=1_790_000_000_000 + number)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": at, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 5) for topic in topics], asynchronous=False)
    consumer.close()
    return group, *topics


def reset(at, group, *words):
    (found,) = answer("groups", "reset", group, *words, bootstrap=at)
    return {(row["topic"], row["partition"]): row["new_offset"] for row in found["partitions"]}


def offsets(at, group):
    (found,) = answer("groups", "describe", group, bootstrap=at)
    return {(row["topic"], row["partition"]): row["offset"] for row in found["partitions"]}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "new"),
    [
        (("--to", "earliest"), 0),
        (("--to", "latest"), 10),
        (("--to", "7"), 7),
        (("--to", "-3"), 7),
        (("--to", "99"), 10),
        (("--to", "@1790000000004"), 4),
        (("--to", "@2026-09-21T14:13:20.004Z"), 4),
        (("--shift", "3"), 8),
        (("--shift", "-3"), 2),
        (("--shift", "-99"), 0),
        (("--shift", "99"), 10),
    ],
)
def test_offsets_are_shown_and_with_execute_committed(stablelog_broker, names, words, new):
    at, (group, *topics) = stablelog_broker.bootstrap, names
    before, after = ({(topic, 0): offset for topic in topics} for offset in (5, new))
    assert reset(at, group, *words) == after
    assert offsets(at, group) == before
    assert reset(at, group, *words, "--execute") == after
    assert offsets(at, group) == after


@pytest.mark.extended
def test_topics_and_partitions_are_chosen(stablelog_broker, names):
    at, (group, a, b) = stablelog_broker.bootstrap, names
    assert reset(at, group, "--to", "1", "--topic", a) == {(a, 0): 1, (a, 1): 1}
    assert reset(at, group, "--to", "1", "--topic", a, "-p", "1", "--execute") == {(a, 1): 1}
    assert offsets(at, group) == {(a, 0): 5, (a, 1): 1, (b, 0): 5}
    assert reset(at, group, "--shift", "1", "--topic", b) == {(b, 0): 6}


@pytest.mark.extended
def test_a_group_that_does_not_exist_gets_offsets_of_the_topics_that_are_named(stablelog_broker, names):
    at, (_, a, b), group = stablelog_broker.bootstrap, names, unique("new")
    assert set(reset(at, group, "--to", "1", "--topic", a, "--topic", b, "--execute").values()) == {1}
    assert set(offsets(at, group).values()) == {1}


@pytest.mark.extended
def test_a_dry_run_says_so_and_an_offset_that_is_not_there_is_named(stablelog_broker, names):
    at, (group, a, b) = stablelog_broker.bootstrap, names
    done = run("groups", "reset", group, "--to", "99", bootstrap=at)
    assert done.stdout.endswith("dry run: nothing was changed; --execute does it\n")
    assert done.stderr == "".join(
        f"{topic}-0 has no offset 99: its offsets are 0 to 10\n" for topic in (a, b)
    )
    assert "dry run" not in run("groups", "reset", group, "--to", "5", "--execute", bootstrap=at).stdout


@pytest.mark.extended
def test_a_group_with_members_is_refused(stablelog_broker, names):
    at, (group, topic, _) = stablelog_broker.bootstrap, names
    member = Consumer(
        {"bootstrap.servers": at, "group.id": group, "log_level": 0, "enable.auto.commit": False}
    )
    member.subscribe([topic])
    until(lambda: member.poll(0.1) is not None or member.assignment(), "the member got nothing")
    for words in ((), ("--execute",)):
        done = run("groups", "reset", group, "--to", "earliest", *words, bootstrap=at)
        assert (done.returncode, done.stderr) == (
            2,
            f"stablelog: group {group!r} has members: stop them first\n",
        )
    member.close()
    assert offsets(at, group)[topic, 0] == 5


@pytest.mark.extended
def test_a_group_with_offsets_of_an_open_transaction_is_not_deleted_and_the_message_says_why(
    stablelog_broker, names
):
    at, (group, topic, _) = stablelog_broker.bootstrap, names
    reader = Consumer({"bootstrap.servers": at, "group.id": group, "log_level": 0})
    producer = Producer({"bootstrap.servers": at, "transactional.id": unique("open"), "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], reader.consumer_group_metadata(), 30)
    reader.close()
    done = run("groups", "delete", group, bootstrap=at)
    assert done.returncode == 2
    assert f"group {group!r} is in use: it has members, or an open transaction that commits" in done.stderr
    producer.abort_transaction(30)
    assert run("groups", "delete", group, bootstrap=at).returncode == 0


def test_a_member_that_joins_meanwhile_is_named(stablelog_broker, names, monkeypatch):
    at, (group, topic, _) = stablelog_broker.bootstrap, names
    member = Consumer(
        {"bootstrap.servers": at, "group.id": group, "log_level": 0, "enable.auto.commit": False}
    )
    describe = groups.find_offsets

    def join(*arguments):
        member.subscribe([topic])
        until(lambda: member.poll(0.1) is not None or member.assignment(), "the member got nothing")
        return describe(*arguments)

    monkeypatch.setattr(groups, "find_offsets", join)
    with pytest.raises(UnavailableError, match="has members: stop them first"):
        groups.reset(group, to="earliest", execute=True, bootstrap=[at])
    member.close()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give either --to or --shift"),
        (("--to", "1", "--shift", "1"), "give either --to or --shift"),
        (("--to", "soon"), "--to soon is not valid"),
        (("--to", "1", "-p", "0"), "--partition needs one --topic"),
        (("--to", "1", "--topic", "a", "--topic", "b", "-p", "0"), "--partition needs one --topic"),
    ],
)
def test_options_that_are_not_valid_are_refused(words, why):
    done = run("groups", "reset", "g", *words, "--timeout", "0", bootstrap="127.0.0.1:1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert why in done.stderr


@pytest.mark.parametrize("words", [("--to", "1"), ("--shift", "1"), ("--shift", "1", "--topic", "T")])
def test_a_group_without_offsets_is_refused(stablelog_broker, names, words):
    words = [names[1] if word == "T" else word for word in words]
    done = run("groups", "reset", unique("nobody"), *words, bootstrap=stablelog_broker.bootstrap)
    assert done.returncode == 2
    assert "has no committed offsets there" in done.stderr


@pytest.mark.extended
def test_both_kinds_of_group_are_told_apart(stablelog_broker):
    at, topic = stablelog_broker.bootstrap, unique("kinds")
    groups = {kind: unique(kind) for kind in ("classic", "consumer")}
    assert answer("topics", "create", topic, bootstrap=at)
    for kind, group in groups.items():
        member = Consumer(
            {"bootstrap.servers": at, "group.id": group, "group.protocol": kind, "log_level": 0}
        )
        member.subscribe([topic])
        until(lambda member=member: member.poll(0.05) or member.assignment(), "nothing is assigned")
        (described,) = answer("groups", "describe", group, bootstrap=at)
        assert (described["kind"], described["state"], described["members"]) == (kind, "stable", 1)
        assert [row["partition"] for row in described["partitions"]] == [0]
        member.close()
    listed = answer("groups", "list", bootstrap=at)
    kinds = {row["group"]: row["kind"] for row in (listed[0] if isinstance(listed[0], list) else listed)}
    assert {kind: kinds[group] for kind, group in groups.items()} == {kind: kind for kind in groups}
