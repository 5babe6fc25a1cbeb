"""What is gathered about a running broker by its protocol."""

import contextlib

import stablelog
from stablelog.cli.broker import connect
from stablelog.cli.config import SOURCES
from stablelog.errors import RefusedError
from stablelog.ops.doctor.running_broker import broker_facts
from tests.clients.drivers import unique
from tests.full_disk import served
from tests.waiting import until


@contextlib.contextmanager
def facts_of(bootstrap):
    """A function that gathers the facts."""
    with stablelog.connect(bootstrap) as client:
        yield lambda: broker_facts(bootstrap, client.admin, connect, SOURCES)


class Refusing:
    """An administration that refuses requests for settings and topics."""

    def __init__(self, admin):
        self.brokers = admin.brokers
        self.configs = self.topics = self

    def describe(self, kind, name):
        raise RefusedError(29, f"settings of {kind} {name}: not authorized")

    def list(self, *, internal):
        raise RefusedError(29, "topics: not authorized")


def test_settings_are_shown_unless_they_have_their_default(stablelog_broker):
    with facts_of(stablelog_broker.bootstrap) as gather:
        facts = gather()
    assert (facts.failure, facts.refusals, facts.offline) == ("", (), 0)
    assert list(facts.brokers.values()) == [stablelog_broker.bootstrap]
    assert facts.settings
    assert "default" not in {one.source for one in facts.settings}
    assert facts.volume.path == str(stablelog_broker.data.resolve())
    assert 0 < facts.volume.free <= facts.volume.total
    assert not facts.volume.is_full


def test_topics_and_partitions_are_counted(stablelog_broker):
    with (
        facts_of(stablelog_broker.bootstrap) as gather,
        stablelog.connect(stablelog_broker.bootstrap) as client,
    ):
        before = gather()
        client.admin.topics.create(unique("t"), partitions=3)
        after = gather()
    assert (after.topics - before.topics, after.partitions - before.partitions) == (1, 3)


def test_a_refused_request_is_a_fact_and_the_rest_is_gathered(stablelog_broker):
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        facts = broker_facts(stablelog_broker.bootstrap, Refusing(client.admin), connect, SOURCES)
    assert [refusal.endswith("not authorized") for refusal in facts.refusals] == [True, True]
    assert facts.settings == ()
    assert (facts.topics, facts.partitions, facts.offline) == (None, None, None)
    assert facts.volume is not None


def test_a_full_disk_is_told_by_the_broker():
    with served() as broker:
        broker.call(lambda one: one.topic_files.create("t", 1, {}))
        with facts_of(broker.bootstrap) as gather, stablelog.connect(broker.bootstrap) as client:
            assert not gather().volume.is_full
            broker.fill()
            with contextlib.suppress(stablelog.StablelogError):
                client.admin.topics.create("another")
            until(lambda: broker.is_full, "the disk is not full")
            assert gather().volume.is_full
