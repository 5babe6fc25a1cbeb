"""What `dir` and `repr` show of the objects of the client: names that are meant for programs, what a thing is, its state."""

import asyncio

import pytest

import stablelog
from tests.client.transactions import create
from tests.clients.drivers import unique

CLIENT = {"admin", "close", "read", "subscribe", "transaction"}
TRANSACTION = {"abort", "commit", "write", "write_many"}
READER = {"batches", "close", "pause", "position", "resume", "seek", "seek_to_offset", "seek_to_time"}
GROUP_READER = {
    *("assignment", "batches", "close", "commit", "pause", "resume"),
    *("seek", "seek_to_beginning", "seek_to_end", "seek_to_time"),
}
AREAS = {"acls", "brokers", "configs", "groups", "quotas", "topics", "transactions", "users"}
SECRET = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": 'PlainLoginModule required username="alice" password="open-sesame";',
}


def names(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_an_object_of_the_client_has_no_name_that_is_not_meant(stablelog_broker):
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        assert names(client) == CLIENT
        assert names(client.read("t")) == READER
        assert names(client.transaction()) == TRANSACTION
        assert names(client.subscribe("t", group="g")) == GROUP_READER
        assert names(client.admin) == AREAS
        assert "run" not in names(client.admin.topics)

    async def conversation():
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as client:
            assert names(client) == CLIENT
            assert names(client.read("t")) == READER | {"aclose"}
            assert names(client.transaction()) == TRANSACTION
            assert names(client.subscribe("t", group="g")) == GROUP_READER | {"aclose"}
            assert names(client.admin) == AREAS
            assert "run" not in names(client.admin.topics)

    asyncio.run(conversation())


def test_a_repr_says_what_a_thing_is_and_its_state(stablelog_broker):
    at, topic, group = stablelog_broker.bootstrap, create(stablelog_broker.bootstrap), unique("g")
    with stablelog.connect(at) as client:
        assert repr(client) == f"<Client of {at}, open>"
        assert (repr(client.admin), repr(client.admin.topics)) == (
            f"<Admin of {at}>",
            f"<TopicAdmin of {at}>",
        )
        with client.transaction() as txn:
            assert repr(txn) == "<Transaction, open>"
            position = txn.write(topic, "v")
        assert repr(txn) == f"<Transaction, committed as {txn.commit().commit_sequence}>"
        cancelled = client.transaction(group="g")
        cancelled.abort()
        assert repr(cancelled) == "<Transaction of group g, aborted>"
        assert repr(position.result()).startswith(f"Position(topic={topic!r}, partition=")
        assert repr(txn.commit()).startswith("Committed(commit_sequence=")
        reader, member = client.read([topic, topic]), client.subscribe(topic, group=group)
        assert repr(reader) == f"<Reader of {topic}, open>"
        read = next(reader)
        assert repr(reader) == f"<Reader of {topic}, after commit {read.commit_sequence}, open>"
        assert repr(member) == f"<GroupReader of {topic} in group {group!r}, open>"
        reader.close()
        member.close()
        assert repr(reader).endswith(", closed>")
        assert repr(member).endswith(", closed>")
    assert repr(client) == f"<Client of {at}, closed>"


def test_a_repr_shows_no_secret():
    client = stablelog.connect("localhost:1", settings=SECRET)
    things = [client, client.admin, client.read("t"), client.subscribe("t", group="g"), client.transaction()]
    assert "sesame" not in repr(things)


@pytest.mark.extended
@pytest.mark.parametrize("is_running", [True, False])
def test_a_repr_of_a_broker_says_whether_it_runs(is_running, tmp_path):
    broker = stablelog.serve(tmp_path)
    if is_running:
        with broker:
            assert repr(broker) == (
                f"<EmbeddedBroker at {broker.bootstrap} on {tmp_path}, running as process {broker.pid}>"
            )
    assert repr(broker).endswith("not running>")
