"""A client keeps few idle connections, and none once it is closed."""

import asyncio
from types import SimpleNamespace

import pytest

import stablelog
from stablelog.client import cluster_pool
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.cluster_pool import ClusterPool
from stablelog.client.core.idle_connections import IDLE_MAX
from stablelog.client.internals import clusters_of
from stablelog.errors import RefusedError

NOWHERE = "127.0.0.1:1"  # nothing is asked of it


@pytest.fixture
def closed(monkeypatch):
    """The clusters that were closed, in order."""
    found = []

    def close(self):
        found.append(self)

    monkeypatch.setattr(BlockingCluster, "close", close)
    return found


def test_of_many_idle_clusters_the_longest_idle_are_closed(closed):
    pool = ClusterPool(lambda: BlockingCluster(NOWHERE))
    lent = [pool.lend_cluster() for _ in range(3 * cluster_pool.IDLE_MAX)]
    assert len(set(map(id, lent))) == len(lent)
    for cluster in lent:
        pool.return_cluster(cluster)
    assert closed == lent[: 2 * cluster_pool.IDLE_MAX]
    assert list(pool.idle) == lent[2 * cluster_pool.IDLE_MAX :]
    assert pool.lend_cluster() is lent[-1]


def test_of_many_idle_connections_the_longest_idle_are_closed():
    closed = []

    def connection(number):
        return SimpleNamespace(
            address="a:1" if number % 2 else "b:1",
            is_closed=False,
            is_awaiting=False,
            close=lambda: closed.append(number),
        )

    with BlockingCluster(NOWHERE) as cluster:
        for number in range(20):
            cluster.return_connection(connection(number))
        assert closed == list(range(20 - 2 * IDLE_MAX))
    assert sorted(closed) == list(range(20))


def test_a_closed_client_begins_nothing():
    with stablelog.connect(NOWHERE) as client:
        pass
    for begin in (client.transaction, lambda: next(client.read("t"))):
        with pytest.raises(RefusedError, match="closed: make another one"):
            begin()


def test_a_closed_asyncio_client_begins_nothing():
    async def conversation():
        async with stablelog.aio.connect(NOWHERE) as client:
            pass
        other = stablelog.aio.connect(NOWHERE)
        await other.close()
        for closed in (client, other):
            with pytest.raises(RefusedError, match="is closed"):
                closed.transaction()
            with pytest.raises(RefusedError, match="is closed"):
                await anext(closed.read("t"))

    asyncio.run(conversation())


def test_what_was_begun_before_ends_after_the_close(stablelog_broker):
    client = stablelog.connect(stablelog_broker.bootstrap)
    txn = client.transaction()
    client.close()
    txn.abort()
    assert not clusters_of(client).idle
