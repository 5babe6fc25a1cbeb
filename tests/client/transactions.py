"""What tests of transactions share: topics, what is to be seen of them, and a client behind a proxy."""

import time

from confluent_kafka.admin import AdminClient, NewTopic

from stablelog.batch.header import HEADER, headers_in
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.client import internals
from stablelog.client.aio.client import AsyncClient
from stablelog.client.aio.cluster import AsyncCluster
from stablelog.client.blocking.client import Client
from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.client.blocking.connection import run
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.client.blocking.transaction import Transaction
from stablelog.client.cluster_pool import ClusterPool
from stablelog.client.core.admin.transactions import describe_at_coordinator
from stablelog.client.core.positions import Position
from stablelog.client.responses import RetriableError
from stablelog.errors import RefusedError
from tests.clients.drivers import unique

SILENCE_S = 60  # for which a broker may be silent here: what fails is what a test wants to fail


def create(bootstrap, order="commit", partitions=2, group="", name=None):
    name = name or unique(order)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = {"stablelog.order": order} | ({"stablelog.group": group} if group else {})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
    return name


def visible(bootstrap, *topics, deadline_s=60):
    """What a read-committed reader gets of topics without aborted transactions: {position: value}."""
    found = {}
    with BlockingCluster(bootstrap, deadline_s=deadline_s) as cluster:
        for topic in topics:
            for partition in cluster.metadata((topic,))[topic].partitions:
                target = (topic, partition)
                cluster.retrying("seeing the end", lambda target=target: stable(cluster, target))
                offset = cluster.list_offsets({target: EARLIEST})[target].offset
                while True:
                    fetched = cluster.fetch(*target, offset, wait_ms=0)
                    ahead = sorted((first, producer_id) for producer_id, first in fetched.aborted)
                    aborted = set()  # producer ids, each until the marker of its transaction
                    before = offset
                    for at, header in headers_in(fetched.records):
                        offset = header.next_offset
                        while ahead and ahead[0][0] <= header.base_offset:
                            aborted.add(ahead.pop(0)[1])
                        if header.is_control:
                            aborted.discard(header.producer_id)
                        elif header.producer_id not in aborted:
                            for record in decode_records(fetched.records, at):
                                found[Position(*target, record.offset)] = record.value
                    if offset == before:
                        break
    return found


def stable(cluster, target):
    """Nothing of an ordinary topic is held back: a commit is answered before its marker need be visible."""
    end = cluster.list_offsets({target: LATEST}, "read_uncommitted")[target].offset
    if cluster.list_offsets({target: LATEST})[target].offset < end and not target[0].startswith("commit"):
        raise RetriableError("not yet")


def settled(futures, timeout=0):
    """Whether all came true, or else all failed."""
    end = time.monotonic() + timeout
    failed = {future.exception(max(0, end - time.monotonic())) is not None for future in futures}
    assert len(failed) == 1, "a part of a transaction"
    return not failed.pop()


def assert_failed(futures, code=None):
    assert not settled(futures)
    for future in futures:
        assert isinstance(future.exception(), RefusedError)
        assert code is None or future.exception().code is code


def state_of(bootstrap, transactional_id):
    with BlockingCluster(bootstrap, timeout_s=SILENCE_S) as cluster:
        connection = cluster.coordinator(transactional_id)
        try:
            return run(describe_at_coordinator(connection, transactional_id)).state
        except RefusedError:
            return "Gone"


class _Directed:
    """A cluster behind a proxy, whose broker tells its own address."""

    def __init__(self, proxy, broker, deadline_s):
        super().__init__(proxy.bootstrap, deadline_s=deadline_s, timeout_s=SILENCE_S)
        self._proxy, self._broker = proxy, broker

    def open_connection(self, address, probe=None):
        is_broker = address == self._broker.bootstrap
        return super().open_connection(self._proxy.bootstrap if is_broker else address, probe)


class Directed(_Directed, BlockingCluster):
    """For threads."""


class AsyncDirected(_Directed, AsyncCluster):
    """For asyncio: what `open_connection` returns is awaited."""


def through(proxy, broker, deadline_s=60):
    """A client of a proxy."""
    return Client(ClusterPool(lambda: Directed(proxy, broker, deadline_s)))


def async_through(proxy, broker, deadline_s=60):
    """An asyncio client of a proxy."""
    return AsyncClient(ClusterPool(lambda: AsyncDirected(proxy, broker, deadline_s)))


def writing_of(txn):
    """What decides what a transaction sends and how it ends, of each face."""
    return internals.writing_of(getattr(txn, "inner", txn))


def flush(txn):
    """Send what was written so far, and wait until the broker has it."""
    if isinstance(txn, Transaction):
        internals.flush(txn)
    else:
        txn.flush()


def write_undecodable(bootstrap, topic):
    """A transaction of a record whose length is wrong. A broker takes it only with `stablelog.produce.proof=header`."""
    with BlockingCluster(bootstrap) as cluster:
        producer = BlockingProducer(cluster, unique("undecodable"))
        producer.begin()
        batch = bytearray(encode_batch([Record(0, 0, None, b"v")]))
        batch[HEADER.size] = 0x7E
        producer.append(topic, 0, batch)
        producer.flush()
        producer.end(commit=True)


def write_everywhere(client, *topics, group=""):
    txn = client.transaction(group=group, timeout=60)
    return txn, {
        txn.write(topic, b"%d" % n, key=b"k", partition=n % 2): b"%d" % n
        for topic in topics
        for n in range(4)
    }
