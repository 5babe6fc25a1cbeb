"""`stablelog acls`, and the AdminClient of confluent-kafka."""

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import stablelog
from tests.cli.test_cli import answer, run
from tests.clients.drivers import EVERY_ACL

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ALICE = ("--principal", "User:alice")


@pytest.fixture
def at(tmp_path):
    with stablelog.serve(
        tmp_path / "data", authorizer_class_name=AUTHORIZER, super_users="User:ANONYMOUS"
    ) as broker:
        yield broker.bootstrap


def rows(at, *words):
    (found,) = answer("acls", *words, bootstrap=at)
    listed = found["acls"] if isinstance(found, dict) else found
    return {
        f"{row['permission']} {row['principal']} {row['host']} {row['operation']} "
        f"{row['resource']}:{row['pattern']}:{row['name']}"
        for row in listed
    }


@pytest.mark.extended
def test_the_acls_of_a_producer_and_a_consumer(at):
    rows(
        at, "add", "--allow", *ALICE, "--producer", "--idempotent", "--topic", "t", "--transactional-id", "x"
    )
    assert rows(at, "list") == {
        f"allow User:alice * {operation}"
        for operation in (
            "write topic:literal:t",
            "describe topic:literal:t",
            "create topic:literal:t",
            "write transactional_id:literal:x",
            "describe transactional_id:literal:x",
            "idempotent_write cluster:literal:kafka-cluster",
        )
    }
    rows(
        at,
        *("add", "--allow", "--principal", "User:bob", "--consumer", "--topic", "p", "--group", "g"),
        *("--pattern", "prefixed", "--host", "10.0.0.1"),
    )
    assert rows(at, "list", "--principal", "User:bob") == {
        f"allow User:bob 10.0.0.1 {operation}"
        for operation in ("read topic:prefixed:p", "describe topic:prefixed:p", "read group:prefixed:g")
    }


@pytest.mark.extended
def test_match_lists_what_applies_and_removal_needs_execute(at):
    for name, pattern in (("t", "literal"), ("*", "literal"), ("topic", "prefixed"), ("other", "literal")):
        rows(
            at, "add", "--deny", *ALICE, "--operation", "alter-configs", "--topic", name, "--pattern", pattern
        )
    applying = {
        "deny User:alice * alter_configs topic:literal:*",
        "deny User:alice * alter_configs topic:prefixed:topic",
    }
    assert rows(at, "list", "--topic", "topic-1", "--pattern", "match") == applying
    shown = run("acls", "remove", "--topic", "topic-1", "--pattern", "match", bootstrap=at)
    assert shown.stdout.endswith("dry run: nothing was changed; --execute does it\n"), shown
    assert len(rows(at, "list")) == 4
    assert rows(at, "remove", "--topic", "topic-1", "--pattern", "match", "--execute") == applying
    assert len(rows(at, "list")) == 2
    assert rows(at, "remove", "--allow", *ALICE, "--execute") == set()
    assert len(rows(at, "list")) == 2
    rows(at, "remove", "--deny", "--execute")
    assert rows(at, "list") == set()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("add", *ALICE, "--topic", "t"), "give either --allow or --deny"),
        (("add", "--allow", "--deny", *ALICE, "--topic", "t"), "give either --allow or --deny"),
        (("add", "--allow", "--topic", "t"), "--principal is missing"),
        (("add", "--allow", "--principal", "alice", "--topic", "t"), "write User:name"),
        (("add", "--allow", *ALICE), "the resource is missing"),
        (("add", "--allow", *ALICE, "--topic", "t", "--operation", "eat"), "use one of all, read, write"),
        (("add", "--allow", *ALICE, "--topic", "t", "--pattern", "match"), "use one of literal, prefixed"),
        (("add", "--allow", *ALICE, "--producer"), "--producer and --consumer need --topic"),
        (("add", "--allow", *ALICE, "--consumer", "--topic", "t"), "--consumer needs --group"),
        (("add", "--allow", *ALICE, "--producer", "--topic", "t", "--group", "g"), "adds no ACL"),
        (
            ("add", "--allow", *ALICE, "--producer", "--topic", "t", "--operation", "read"),
            "cannot be combined",
        ),
        (("add", "--allow", *ALICE, "--topic", ""), "the name of the resource is empty"),
        (("remove",), "name the ACLs to remove"),
    ],
)
def test_options_that_do_not_fit_are_named(words, why):
    done = run("acls", *words, bootstrap="127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr, done.stderr


def test_a_broker_without_an_authorizer_says_so(stablelog_broker):
    done = run("acls", "list", bootstrap=stablelog_broker.bootstrap)
    assert done.returncode == 2
    assert "the broker has no authorizer" in done.stderr


@pytest.mark.extended
def test_the_admin_client_of_confluent_kafka_creates_describes_and_deletes(at):
    admin = AdminClient({"bootstrap.servers": at})
    rule = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.PREFIXED,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    assert admin.create_acls([rule])[rule].result(30) is None
    assert admin.describe_acls(EVERY_ACL).result(30) == [rule]
    assert admin.delete_acls([EVERY_ACL])[EVERY_ACL].result(30) == [rule]
    assert admin.describe_acls(EVERY_ACL).result(30) == []


@pytest.mark.extended
def test_the_acls_of_a_producer_are_enough_for_a_transaction(tmp_path):
    settings = {"authorizer_class_name": AUTHORIZER, "auto_create_topics_enable": False}
    me = ("--principal", "User:ANONYMOUS")
    with stablelog.serve(tmp_path / "data", super_users="User:ANONYMOUS", **settings) as broker:
        for topic, *configs in (["t"], ["grouped", "--config", "stablelog.group=pay"]):
            assert run("topics", "create", topic, *configs, bootstrap=broker.bootstrap).returncode == 0
            producer = ("--producer", "--topic", topic, "--transactional-id", "*")
            assert run("acls", "add", "--allow", *me, *producer, bootstrap=broker.bootstrap).returncode == 0
    with stablelog.serve(tmp_path / "data", super_users="User:root", **settings) as broker:
        done = run("produce", "t", "--transaction", bootstrap=broker.bootstrap, given="a\nb\n")
        assert (done.returncode, done.stderr) == (0, "")
        done = run("produce", "grouped", "--transaction", bootstrap=broker.bootstrap, given="a\n")
        assert done.returncode == 2
        assert "this user may not describe the topic's settings" in done.stderr
