"""A reader that has read everything waits at the broker: it asks seldom, and a commit wakes it at once."""

import asyncio

import pytest

from stablelog.client.core import long_poll
from stablelog.client.core.long_poll import WAIT_MAX_S
from stablelog.client.internals import clusters_of
from stablelog.wire.api import ApiKey
from tests.client.faults import Proxy
from tests.client.model_broker import PARTITIONS
from tests.client.test_aio import Gate, behind, run, until  # noqa: F401 - `run` is a fixture
from tests.client.transactions import SILENCE_S, create, flush, through

by = pytest.mark.parametrize("cut", [True, False], ids=["cut", "partitions"])


# --- over a broker ---


@by
def test_a_commit_wakes_a_reader_that_has_asked_nothing_meanwhile(stablelog_broker, monkeypatch, cut):
    """The long poll would last for longer than this test may."""
    monkeypatch.setattr(long_poll, "WAIT_MAX_S", 1000)
    monkeypatch.setattr("stablelog.client.core.transaction_stream.WAIT_MAX_S", 1000)
    topic = create(stablelog_broker.bootstrap)
    gate, asked = Gate(ApiKey.FETCH), []
    gate.opened.set()

    def noted(key, count):
        asked.append(key)
        return gate(key, count)

    async def conversation(proxy):
        async with behind(proxy, stablelog_broker) as client:
            following = client.read(topic, cut=cut, wait=None)
            reading = asyncio.create_task(anext(following))
            await until(gate.reached)
            before = len(asked)
            with through(stablelog_broker, stablelog_broker) as writer, writer.transaction() as txn:
                txn.write(topic, b"v", key=b"k", partition=1)
            transaction = await reading
            assert [record.value for record in transaction.records] == [b"v"]
            # DescribeCut, which may have to be repeated, and DescribeCommits. No second Fetch: the first had the record.
            assert len(asked) - before <= 1 + PARTITIONS + 5
            assert asked.count(ApiKey.FETCH) == 1
            await following.aclose()

    with Proxy((stablelog_broker.host, stablelog_broker.port), noted) as proxy:
        asyncio.run(asyncio.wait_for(conversation(proxy), 120))


@by
def test_a_cancelled_reader_does_not_wait_for_the_end_of_its_long_poll(stablelog_broker, run, cut):  # noqa: F811
    """The broker does not answer it, and the client would bear that for SILENCE_S."""
    topic, gate = create(stablelog_broker.bootstrap), Gate(ApiKey.FETCH)

    async def conversation(proxy):
        async with behind(proxy, stablelog_broker) as client:
            following = client.read(topic, cut=cut)
            reading = asyncio.create_task(anext(following))
            await until(gate.reached)
            reading.cancel()
            await asyncio.wait({reading}, timeout=SILENCE_S / 2)
            assert reading.cancelled()
            assert not gate.opened.is_set()
            await following.close()
            assert len(clusters_of(client).idle) == 1
            gate.opened.set()

    with Proxy((stablelog_broker.host, stablelog_broker.port), gate) as proxy:
        run(conversation(proxy))


@pytest.mark.extended
@by
def test_an_idle_reader_of_a_broker_asks_seldom(stablelog_broker, cut):
    """Records outside transactions, and transactions that are open or aborted, do not change this."""
    topic = create(stablelog_broker.bootstrap)
    with through(stablelog_broker, stablelog_broker) as writer:
        for _ in range(3):
            with writer.transaction() as txn:
                txn.write(topic, b"v", key=b"k")
        txn = writer.transaction()
        txn.write(topic, b"aborted", key=b"k")
        flush(txn)
        txn.abort()
        still_open = writer.transaction()
        still_open.write(topic, b"open", key=b"k")
        flush(still_open)
        asked = []
        with (
            Proxy(
                (stablelog_broker.host, stablelog_broker.port), lambda key, _count: asked.append(key)
            ) as proxy,
            through(proxy, stablelog_broker) as client,
        ):
            assert len(list(client.read(topic, cut=cut, wait=2 * WAIT_MAX_S))) == 3
        assert len(asked) <= 2 * 3 + 20
        still_open.abort()
