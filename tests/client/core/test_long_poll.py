"""Long polls over a broker in memory: a reader that has read everything asks seldom, and ends when it is cancelled."""

import itertools

import pytest

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.long_poll import WAIT_MAX_S, wait_for_records
from stablelog.errors import UnavailableError
from stablelog.wire.api import ApiKey
from tests.client.core.test_transaction_reader import ROUNDING_S, by, reader, values
from tests.client.model_broker import ADDRESS, TOPIC, ModelBroker, ModelShell


@by
@pytest.mark.parametrize("after", [0, None])
def test_an_idle_reader_asks_once_or_twice_a_second(cut, after):
    broker = ModelBroker()
    shell = ModelShell(broker)
    broker.commit({0: [b"a"]})
    shell.run(reader(Cluster(ADDRESS), cut=cut, after=after, wait_s=60))
    assert 60 <= shell.now <= 60 + ROUNDING_S * 61
    polls = 60 / WAIT_MAX_S + 2
    assert broker.asked.count(ApiKey.FETCH) <= polls
    assert len(broker.asked) <= 2 * polls + 12


@by
@pytest.mark.parametrize("leader_count", [1, 2])
def test_a_reader_that_is_cancelled_ends_whatever_it_waits_for(cut, leader_count):
    for cancelled_at in range(1, 60):
        broker, effects = ModelBroker(leader_count), itertools.count(1)
        cluster = Cluster(ADDRESS)

        def at_effect(cluster=cluster, effects=effects, cancelled_at=cancelled_at):
            if next(effects) == cancelled_at:
                cluster.cancel_retries()

        shell = ModelShell(broker, at_effect=at_effect)
        broker.commit({0: [b"a"], 1: [b"b"]})
        with pytest.raises(UnavailableError, match="the call was cancelled"):
            shell.run(reader(cluster, cut=cut, wait_s=None))
        assert next(effects) <= cancelled_at + 60
        # The next reader is not disturbed by what is still in flight.
        cluster.allow_retries()
        shell.given.clear()
        shell.run(reader(cluster, cut=cut, wait_s=0))
        assert values(shell.given) == {(1, 0): [b"a"], (1, 1): [b"b"]}


def test_a_connection_on_which_a_given_up_long_poll_waits_is_closed():
    """Its response would be taken for that to the next request."""
    broker, opened = ModelBroker(2), itertools.count()
    shell = ModelShell(broker, lambda key: "away" if key is None and next(opened) == 1 else None)
    cluster = Cluster(ADDRESS)
    shell.run(cluster.metadata((TOPIC,)))
    connection = shell.run(cluster.any_connection())
    targets = {(TOPIC, 0): 0, (TOPIC, 1): 0}
    assert shell.run(wait_for_records(cluster, targets, 5, 1000)) == dict.fromkeys(targets)
    assert connection.is_closed
    assert broker.asked[-1] == ApiKey.FETCH
    assert shell.run(wait_for_records(cluster, targets, 5, 1000)) == {}
    broker.write_outside(1, [b"v"])
    assert shell.run(wait_for_records(cluster, targets, 5, 1000)).keys() == {(TOPIC, 1)}
