"""`client.admin` with both clients: what it changes is there, and what it cannot do it refuses by name."""

import asyncio
import inspect
import json
import re

import pytest
from confluent_kafka import Consumer, Producer

import stablelog
from stablelog.client.aio import admin as aio
from stablelog.client.blocking import admin as blocking
from stablelog.client.core.admin.configs import ConfigSource
from stablelog.client.core.admin.groups import CommittedOffset
from stablelog.errors import RefusedError, UsageError
from stablelog.wire.acls import AclBinding, AclFilter, Operation, Pattern, Permission, ResourceType
from stablelog.wire.sasl.scram import Mechanism
from tests import documented
from tests.clients.drivers import unique
from tests.commands import ROOT

AREAS = ("brokers", "topics", "configs", "groups", "transactions", "users", "acls", "quotas")
SECURED = {
    "super.users": "User:ANONYMOUS",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}


class Awaited:
    """The areas of the asyncio client, with methods that wait."""

    def __init__(self, target, runner):
        self._target, self._runner = target, runner

    def __getattr__(self, name):
        found = getattr(self._target, name)
        if name in AREAS:
            return Awaited(found, self._runner)
        return lambda *arguments, **named: self._runner.run(found(*arguments, **named))


@pytest.fixture(scope="module")
def broker():
    with stablelog.serve(settings=SECURED) as running:
        yield running


@pytest.fixture(params=["threads", "asyncio"])
def admin(request, broker):
    if request.param == "threads":
        with stablelog.connect(broker.bootstrap) as client:
            yield client.admin
        return
    with asyncio.Runner() as runner:

        async def connected():
            return stablelog.aio.connect(broker.bootstrap)

        client = runner.run(connected())
        yield Awaited(client.admin, runner)
        runner.run(client.close())


@pytest.fixture
def topic(admin):
    name = unique("topic")
    admin.topics.create(name, partitions=2)
    return name


def test_both_clients_have_the_same_methods():
    def surface(module):
        return {
            (area, name, str(inspect.signature(method)))
            for area, kind in vars(module).items()
            if inspect.isclass(kind) and issubclass(kind, module.AdminArea) and kind is not module.AdminArea
            for name, method in vars(kind).items()
            if not name.startswith("_")
        }

    assert surface(blocking) == surface(aio)
    assert {_area(name) for name, _, _ in surface(blocking)} == set(AREAS)


def _area(class_name):
    """The attribute of `Admin` that has the methods of a class."""
    return f"{class_name.removesuffix('Admin').lower()}s"


@pytest.mark.extended
def test_a_topic_is_created_described_changed_and_deleted(admin):
    name = unique("topic")
    created = admin.topics.create(name, partitions=2, configs={"stablelog.order": "commit"})
    assert (created.name, created.partition_count) == (name, 2)
    described = admin.topics.describe(name)
    assert (described.topic_id, list(described.partitions)) == (created.topic_id, [0, 1])
    assert name in admin.topics.list()
    admin.topics.add_partitions(name, 3)
    assert len(admin.topics.describe(name).partitions) == 3
    found = admin.configs.describe("topic", name, names=["stablelog.order", "retention.ms"])
    assert (found["stablelog.order"].value, found["stablelog.order"].source) == ("commit", ConfigSource.TOPIC)
    admin.configs.alter("topic", name, {"retention.ms": "1000"})
    assert admin.configs.describe("topic", name)["retention.ms"].value == "1000"
    admin.configs.alter("topic", name, {"retention.ms": None})
    assert admin.configs.describe("topic", name)["retention.ms"].source is ConfigSource.DEFAULT
    admin.topics.delete(name)
    assert name not in admin.topics.list()


@pytest.mark.extended
def test_internal_topics_are_listed_if_asked_for(admin, topic):
    admin.groups.commit_offsets(unique("group"), {(topic, 0): 0})
    assert "__consumer_offsets" not in admin.topics.list()
    assert "__consumer_offsets" in admin.topics.list(internal=True)


@pytest.mark.parametrize(
    ("work", "code", "message"),
    [
        (lambda admin, name: admin.topics.create(name), "TOPIC_ALREADY_EXISTS", "creating topic"),
        (lambda admin, name: admin.topics.create("a/b"), "INVALID_TOPIC_EXCEPTION", "creating topic 'a/b'"),
        (lambda admin, name: admin.topics.describe("none"), "UNKNOWN_TOPIC_OR_PARTITION", "no topic 'none'"),
        (lambda admin, name: admin.topics.delete("none"), "UNKNOWN_TOPIC_OR_PARTITION", "no topic 'none'"),
        (lambda admin, name: admin.topics.add_partitions(name, 1), "INVALID_PARTITIONS", "partitions of topic"),
        (
            lambda admin, name: admin.topics.delete_records({(name, 0): 99}),
            "OFFSET_OUT_OF_RANGE",
            "deleting records of",
        ),
        (
            lambda admin, name: admin.configs.alter("topic", name, {"retention.ms": "soon"}),
            "INVALID_CONFIG",
            "retention.ms",
        ),
        (lambda admin, name: admin.groups.delete("none"), "GROUP_ID_NOT_FOUND", "deleting group 'none'"),
        (
            lambda admin, name: admin.transactions.describe("none"),
            "TRANSACTIONAL_ID_NOT_FOUND",
            "transactional id 'none'",
        ),
        (lambda admin, name: admin.transactions.abort_hanging(name, 0, 5), "INVALID_TXN_STATE", "open ones begin at: none"),
        (
            lambda admin, name: admin.users.remove_password("none", Mechanism.SHA_512),
            "RESOURCE_NOT_FOUND",
            "user 'none'",
        ),
        (lambda admin, name: admin.quotas.alter({"user": "a"}, {"speed": 1.0}), "INVALID_REQUEST", "quotas of user 'a'"),
    ],
)  # fmt: skip
def test_what_the_broker_refuses_is_said_at_once(admin, topic, work, code, message):
    with pytest.raises(RefusedError, match=message) as refused:
        work(admin, topic)
    assert refused.value.code_name == code


def test_records_before_an_offset_are_deleted(admin, topic, broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for _ in range(5):
        producer.produce(topic, b"v", partition=0)
    producer.flush(30)
    assert admin.topics.delete_records({(topic, 0): 3, (topic, 1): 0}) == {(topic, 0): 3, (topic, 1): 0}
    first = admin.topics.offsets({(topic, 0): -2})[topic, 0].offset
    last = admin.topics.offsets({(topic, 0): -1}, isolation="read_uncommitted")[topic, 0].offset
    assert (first, last) == (3, 5)


def test_offsets_of_a_group_are_committed_listed_and_deleted(admin, topic):
    group = unique("group")
    admin.groups.commit_offsets(group, {(topic, 0): 5, (topic, 1): CommittedOffset(7, metadata="m")})
    assert admin.groups.offsets(group) == {
        (topic, 0): CommittedOffset(5),
        (topic, 1): CommittedOffset(7, metadata="m"),
    }
    assert [one.state for one in admin.groups.list() if one.group_id == group] == ["Empty"]
    admin.groups.delete_offsets(group, [(topic, 0)])
    assert list(admin.groups.offsets(group)) == [(topic, 1)]
    admin.groups.delete(group)
    assert admin.groups.describe(group).state == "Dead"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described_with_its_members(admin, topic, broker, protocol):
    group = unique("group")
    settings = {"group.id": group, "group.protocol": protocol, "client.id": "one", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.subscribe([topic])
    for _ in range(300):
        consumer.poll(0.1)
        if len(consumer.assignment()) == 2:
            break
    described = admin.groups.describe(group)
    assert (described.group_type, described.state, len(described.members)) == (protocol, "Stable", 1)
    assert described.members[0].client_id == "one"
    assert sorted(described.members[0].partitions) == [(topic, 0), (topic, 1)]
    consumer.close()


def test_a_transaction_is_listed_described_and_aborted(admin, topic, broker):
    name = unique("id")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=1)
    producer.flush(30)
    listed = {one.transactional_id: one for one in admin.transactions.list(states=["Ongoing"])}
    described = admin.transactions.describe(name)
    assert (described.state, described.partitions) == ("Ongoing", ((topic, 1),))
    assert listed[name].producer_id == described.producer_id
    (active,) = admin.transactions.producers([(topic, 1)])[topic, 1]
    assert (active.producer_id, active.start_offset) == (described.producer_id, 0)
    admin.transactions.abort(name)
    assert admin.transactions.producers([(topic, 1)])[topic, 1][0].start_offset == -1
    with pytest.raises(RefusedError, match="has no open transaction"):
        admin.transactions.abort(name)
    with pytest.raises(UsageError, match="there is no state Odd: the states are"):
        admin.transactions.list(states=["Odd"])


def test_users_acls_and_quotas_are_added_and_removed(admin):
    user = unique("user")
    admin.users.set_password(user, "secret")
    assert [(one.mechanism, one.iterations) for one in admin.users.list() if one.user == user] == [
        (Mechanism.SHA_512, 8192)
    ]
    admin.users.remove_password(user, Mechanism.SHA_512)
    assert user not in {one.user for one in admin.users.list()}

    binding = AclBinding(
        Pattern(ResourceType.TOPIC, user), f"User:{user}", "*", Operation.READ, Permission.ALLOW
    )
    admin.acls.add([binding])
    chosen = AclFilter(name=user)
    assert admin.acls.list(chosen) == [binding]
    assert admin.acls.remove([chosen]) == [binding]
    assert admin.acls.list(chosen) == []

    admin.quotas.alter({"user": user}, {"producer_byte_rate": 1000.0})
    assert [one.values for one in admin.quotas.list({"user": user})] == [{"producer_byte_rate": 1000.0}]
    admin.quotas.alter({"user": user}, {"producer_byte_rate": None})
    assert admin.quotas.list({"user": user}) == []


def test_the_brokers_are_listed(admin, broker):
    ((node_id, address),) = admin.brokers.list().items()
    assert address == broker.bootstrap
    assert admin.configs.describe("broker", str(node_id))["num.partitions"].value
    with pytest.raises(RefusedError, match=f"the cluster has no broker {node_id + 7}, only {node_id}"):
        admin.configs.describe("broker", str(node_id + 7))
    with pytest.raises(UsageError, match="'one' is not the id of a broker"):
        admin.configs.describe("broker", "one")


PAGE = ROOT / "docs" / "reference" / "admin.md"


def test_the_page_has_each_method_with_its_arguments():
    listed = set(re.findall(r"(?m)^\| `(\w+\.\w+)\((.*?)\)` \|", PAGE.read_text()))
    expected = set()
    for kind in vars(blocking).values():
        if not (
            inspect.isclass(kind) and issubclass(kind, blocking.AdminArea) and kind is not blocking.AdminArea
        ):
            continue
        for name, method in vars(kind).items():
            if not name.startswith("_"):
                _cluster, *parameters = inspect.signature(method).parameters.values()
                shown = ", ".join(
                    one.name if one.default is one.empty else f"{one.name}={_shown(one.default)}"
                    for one in parameters
                )
                expected.add((f"{_area(kind.__name__)}.{name}", shown))
    assert listed == expected


def _shown(default):
    return (
        str(default)
        if isinstance(default, Mechanism)
        else json.dumps(default)
        if isinstance(default, str)
        else repr(default)
    )


@pytest.mark.parametrize("snippet", documented.take("admin.md"))
def test_what_the_page_shows_runs(broker, snippet):
    exec(snippet.replace("localhost:9092", broker.bootstrap), {"__name__": "page"})
