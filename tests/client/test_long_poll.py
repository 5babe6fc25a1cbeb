"""A reader that has read everything waits at the broker: it asks seldom, and a commit wakes it at once."""

import asyncio
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stablelog.client.core import long_poll
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.long_poll import SEVERAL_LEADERS_WAIT_S, WAIT_MAX_S, wait_for_records
from stablelog.client.core.transaction_reader import ReaderSelection
from stablelog.client.core.transaction_stream import PAUSE_MAX_S
from stablelog.client.internals import clusters_of
from stablelog.errors import UnavailableError
from stablelog.wire.api import ApiKey
from tests.client.faults import Proxy
from tests.client.model_broker import ADDRESS, PARTITIONS, TOPIC, ModelBroker, ModelShell, reading
from tests.client.test_aio import Gate, behind, run, until  # noqa: F401 - `run` is a fixture
from tests.client.transactions import SILENCE_S, create, flush, through
from tests.scale import examples

WAIT_S = 40.0  # longer than the events of a test take
ROUNDING_S = 0.0011  # a wait is rounded up to whole milliseconds
by = pytest.mark.parametrize("cut", [True, False], ids=["cut", "partitions"])


def reader(cluster, *, cut, after=0, wait_s=WAIT_S):
    return reading(cluster, ReaderSelection((TOPIC,), cut, after, wait_s, None))


def values(given):
    """What was read, by (commit sequence, partition)."""
    found = {}
    for _, transaction in given:
        for record in transaction.records:
            found.setdefault((transaction.commit_sequence, record.partition), []).append(record.value)
    return found


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
def test_what_is_resolved_late_is_asked_for_at_short_intervals_and_then_no_more(cut):
    broker = ModelBroker()
    shell = ModelShell(broker)
    shell.planned = [
        (1, lambda: broker.commit({0: [b"late"]}, resolved=False)),
        (5, broker.unresolved.clear),
    ]
    shell.run(reader(Cluster(ADDRESS), cut=cut, wait_s=60))
    ((at, _),) = shell.given
    assert 5 <= at <= 5 + PAUSE_MAX_S if cut else at == 1
    assert len(broker.asked) <= 2 * 66 / WAIT_MAX_S + 4 / PAUSE_MAX_S + 30


KINDS = st.sampled_from(["commit", "commit", "late", "outside"])
EVENTS = st.lists(
    st.tuples(st.floats(0, 2.5), KINDS, st.sets(st.integers(0, PARTITIONS - 1), min_size=1)), max_size=12
)
FATES = st.dictionaries(st.integers(0, 60), st.sampled_from(["request", "answer", "late"]), max_size=5)


@pytest.mark.extended
@settings(max_examples=examples(200), deadline=None)
@example([(0.5, "outside", {0}), (0.5, "commit", {0, 1})], True, {}, 1)
@example([(0.5, "late", {0}), (0.5, "commit", {1})], True, {}, 1)
@example([(0.0, "commit", {0}), (1.0, "commit", {1})], False, {8: "answer"}, 2)
@given(EVENTS, st.booleans(), FATES, st.sampled_from([1, 1, 2]))
def test_every_transaction_comes_once_whole_and_as_soon_as_it_can(events, cut, fates, leader_count):
    """Also if requests or responses are lost, and if records outside transactions come in between."""
    broker, numbers = ModelBroker(leader_count), itertools.count()
    shell = ModelShell(broker, lambda _key: fates.get(next(numbers)))
    written, readable_at, at = {}, {}, 0.0

    def happen(kind, partitions, value):
        if kind == "outside":
            for partition in partitions:
                broker.write_outside(partition, [value])
            return
        sequence = broker.commit({one: [value, value] for one in partitions}, resolved=kind != "late")
        written.update({(sequence, one): [value, value] for one in partitions})
        readable_at[sequence] = shell.now
        if kind == "late":
            shell.planned.append((shell.now + 0.3, lambda: resolve(sequence)))
            shell.planned.sort(key=lambda one: one[0])

    def resolve(sequence):
        broker.unresolved.discard(sequence)
        for one in readable_at:
            if cut and one >= sequence and one < min(broker.unresolved, default=one + 1):
                readable_at[one] = shell.now

    for number, (delay, kind, partitions) in enumerate(events):
        at += delay
        value = b"%d" % number
        shell.planned.append((at, lambda k=kind, p=partitions, v=value: happen(k, p, v)))
    shell.run(reader(Cluster(ADDRESS), cut=cut))
    assert values(shell.given) == written
    order = [(one.commit_sequence, one.records[0].partition) for _, one in shell.given]
    for partition in range(PARTITIONS):
        assert (part := [sequence for sequence, index in order if index == partition]) == sorted(part)
    if cut:
        assert [sequence for sequence, _ in order] == sorted(readable_at)
    slack = SEVERAL_LEADERS_WAIT_S * 2 if leader_count > 1 else 0
    slack += PAUSE_MAX_S if cut and any(kind == "late" for _, kind, _ in events) else 0
    if not fates:
        for given_at, one in shell.given:
            assert given_at <= readable_at[one.commit_sequence] + slack + ROUNDING_S
        last = max((given_at for given_at, _ in shell.given), default=0)
        assert last + WAIT_S <= shell.now <= last + WAIT_S + slack + ROUNDING_S * WAIT_S


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


def test_partitions_at_their_end_are_looked_at_together_while_another_is_read():
    broker = ModelBroker()
    shell = ModelShell(broker)
    for number in range(1000):
        broker.commit({0: [b"%d" % number]})
    shell.run(reader(Cluster(ADDRESS), cut=False, wait_s=0))
    assert len(shell.given) == 1000
    assert broker.asked.count(ApiKey.DESCRIBE_COMMITS) < 20


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
