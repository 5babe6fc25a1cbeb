"""The event loop never waits, and whatever is cancelled is over: aborted, or committed, and nothing in between."""

import asyncio
import gc
import threading
from collections import defaultdict
from contextlib import asynccontextmanager, suppress

import pytest

import stablelog
from stablelog.client import internals
from stablelog.client.core import record_buffer, writing
from stablelog.client.internals import clusters_of
from stablelog.errors import RefusedError, UnavailableError, UsageError
from stablelog.wire.api import ApiKey
from tests.client.faults import Proxy
from tests.client.transactions import async_through, create, state_of, visible, writing_of
from tests.clients.drivers import unique

PRODUCE, INIT_PRODUCER_ID = 0, 22
TIMEOUT_S = 120


@pytest.fixture
def topic(stablelog_broker):
    return create(stablelog_broker.bootstrap)


@pytest.fixture
def run():
    """Runs a coroutine; whatever the loop complains about fails the test."""
    complaints = []

    async def watched(coroutine):
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        return await asyncio.wait_for(coroutine, TIMEOUT_S)

    yield lambda coroutine: asyncio.run(watched(coroutine))
    gc.collect()
    assert complaints == []


@asynccontextmanager
async def behind(proxy, broker, deadline=60):
    """A client whose every request goes through the proxy."""
    async with async_through(proxy, broker, deadline) as client:
        yield client


class Gate:
    """Holds back the requests of one API, from the nth on, until it is opened."""

    def __init__(self, key, nth=1):
        self.key, self.nth = key, nth
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, key, count):
        if key == self.key and count >= self.nth:
            self.reached.set()
            self.opened.wait(TIMEOUT_S)


async def until(reached):
    """A thread's event."""
    assert await asyncio.to_thread(reached.wait, TIMEOUT_S)


def test_the_words_of_the_docs(stablelog_broker, run, topic):
    async def conversation():
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as client:
            async with client.transaction(timeout=30) as txn:
                first = await txn.write(topic, b"1", key="k")
                second = await txn.write(topic, b"2", key="k")
                assert not first.done()
            done = await txn.commit()
            assert (await first, await second) == (done.first, done.last)
            async for transaction in client.read(topic, order="commit", cut=True):
                assert [record.value for record in transaction.records] == [b"1", b"2"]
                assert transaction.commit_sequence == done.commit_sequence
                break
            with pytest.raises(UsageError):
                client.transaction(timeout=0)

    run(conversation())


def test_all_futures_are_done_in_one_step_of_the_loop(stablelog_broker, run, topic):
    async def conversation():
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as client:
            for end in ("commit", "abort"):
                txn = client.transaction()
                futures = [await txn.write(topic, b"v", key=b"k%d" % n) for n in range(500)]
                seen = []
                for future in futures:
                    future.add_done_callback(
                        lambda _, futures=futures, seen=seen: seen.append(all(f.done() for f in futures))
                    )
                await getattr(txn, end)()
                assert {future.exception() is None for future in futures} == {end == "commit"}
                await asyncio.sleep(0)
                assert seen == [True] * 500

    run(conversation())


def test_who_does_not_look_at_a_failure_is_not_told_of_it(stablelog_broker, run, topic):
    """The fixture sees what the loop says of exceptions that nobody retrieved."""

    async def conversation():
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as client:
            with pytest.raises(KeyError):
                async with client.transaction() as txn:
                    await txn.write(topic, b"v", key=b"k")
                    raise KeyError("mine")
            with pytest.raises(RefusedError, match="KeyError"):
                await txn.commit()

    run(conversation())


def test_a_future_that_nobody_waits_for_any_more_changes_nothing(stablelog_broker, run, topic):
    async def conversation():
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as client:
            async with client.transaction() as txn:
                dropped = await txn.write(topic, b"1", key=b"k", partition=0)
                kept = await txn.write(topic, b"2", key=b"k", partition=0)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(dropped, 0.01)
            assert (await txn.commit()).first.offset == kept.result().offset - 1
        assert list(visible(stablelog_broker.bootstrap, topic).values()) == [b"1", b"2"]

    run(conversation())


def test_tasks_write_into_one_transaction_in_the_order_in_which_they_came(
    stablelog_broker, run, topic, monkeypatch
):
    """With more than may be buffered, so that they wait for the broker in between."""
    monkeypatch.setattr(record_buffer, "BATCH_SIZE_MAX", 2000)
    monkeypatch.setattr(record_buffer, "BUFFERED_SIZE_MAX", 3000)

    async def conversation():
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as client:
            async with client.transaction() as txn:
                futures = await asyncio.gather(
                    *(txn.write(topic, b"%d" % n, key=b"k", partition=n % 2) for n in range(1000))
                )
            offsets = [future.result().offset for future in futures]
            assert offsets[::2] == list(range(offsets[0], offsets[0] + 500))
            assert offsets[1::2] == list(range(offsets[1], offsets[1] + 500))

    run(conversation())


@pytest.mark.extended
def test_many_at_once(stablelog_broker, run, topic):
    async def write(client, number):
        async with client.transaction(timeout=TIMEOUT_S) as txn:
            futures = [await txn.write(topic, b"%d-%d" % (number, n)) for n in range(5)]
        return {future.result(): b"%d-%d" % (number, n) for n, future in enumerate(futures)}

    async def conversation():
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as client:
            written = await asyncio.gather(*(write(client, number) for number in range(80)))
            everything = {position: value for one in written for position, value in one.items()}
            read = defaultdict(dict)
            async for transaction in client.read(topic, cut=True, wait=0):
                for record in transaction.records:
                    read[transaction.commit_sequence][tuple(record[:3])] = record.value
            assert len(everything) == 400
            assert sorted(map(sorted, read.values())) == sorted(map(sorted, written))
            assert {p: v for one in read.values() for p, v in one.items()} == everything

    run(conversation())


@pytest.mark.parametrize("key", [ApiKey.METADATA, INIT_PRODUCER_ID, PRODUCE, ApiKey.COMMIT_JOINT])
def test_the_loop_goes_on_while_the_broker_is_waited_for(stablelog_broker, run, topic, key):
    gate = Gate(key)

    async def conversation(proxy):
        async with behind(proxy, stablelog_broker) as client:
            txn = client.transaction(timeout=TIMEOUT_S)

            async def work():
                await txn.write(topic, b"v", key=b"k")
                return await txn.commit()

            working = asyncio.create_task(work())
            await until(gate.reached)
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not working.done()
            gate.opened.set()
            assert (await working).commit_sequence > 0

    with Proxy((stablelog_broker.host, stablelog_broker.port), gate) as proxy:
        run(conversation(proxy))


CANCELLED_AT = {
    "the first write": (ApiKey.METADATA, False),
    "the commit, before anything was sent": (INIT_PRODUCER_ID, False),
    "the commit, before it was asked for": (PRODUCE, False),
    "the commit, once it was asked for": (ApiKey.COMMIT_JOINT, True),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("moment", CANCELLED_AT)
@pytest.mark.parametrize("block", [True, False], ids=["block", "calls"])
def test_what_is_cancelled_is_over(stablelog_broker, run, topic, moment, block, monkeypatch):
    """The task ends at once, and by then the transaction is aborted; if the commit was asked for, it ends once the broker has
    answered, and the transaction is committed.
    """
    monkeypatch.setattr(writing, "CANCEL_S", 60)  # the abort is asked for, however busy the machine is
    key, is_committed = CANCELLED_AT[moment]
    gate = Gate(key)
    ordinary = create(stablelog_broker.bootstrap, "offset")

    async def conversation(proxy):
        async with behind(proxy, stablelog_broker) as client:
            txn, futures = client.transaction(timeout=TIMEOUT_S), []

            async def work():
                if not block:
                    futures.extend([await txn.write(name, b"v", key=b"k") for name in (topic, ordinary)])
                    await txn.commit()
                    return
                async with txn:
                    futures.extend([await txn.write(name, b"v", key=b"k") for name in (topic, ordinary)])

            working = asyncio.create_task(work())
            await until(gate.reached)
            for _ in range(3):  # whoever cancels again and again does no harm
                working.cancel()
                await asyncio.sleep(0.005)
            if is_committed:
                assert not working.done()
                gate.opened.set()
            with pytest.raises(asyncio.CancelledError):
                await working
            gate.opened.set()
            assert {future.exception() is None for future in futures} <= {is_committed}
            assert all(future.done() for future in futures)
            assert len(clusters_of(client).idle) == 1, "what was lent is given back"
            assert not any(cluster.core.are_retries_cancelled for cluster in clusters_of(client).idle)
            if is_committed:
                assert (await txn.commit()).first == futures[0].result()
            else:
                with pytest.raises(RefusedError, match=r"cancelled|CancelledError"):
                    await txn.commit()
                if (
                    key == PRODUCE
                ):  # the batch has arrived behind the abort: the key's next transaction aborts it
                    async with client.transaction() as following:
                        await following.write(topic, b"v", key=b"k")
                    assert writing_of(following).key is writing_of(txn).key
                elif writing_of(txn).producer is not None:
                    assert state_of(stablelog_broker.bootstrap, writing_of(txn).transactional_id) != "Ongoing"
        count = 2 if is_committed else int(key == PRODUCE)
        assert len(visible(stablelog_broker.bootstrap, topic, ordinary)) == count

    with Proxy((stablelog_broker.host, stablelog_broker.port), gate) as proxy:
        run(conversation(proxy))


def test_a_commit_that_is_cancelled_before_its_turn_aborts(stablelog_broker, run, topic):
    gate = Gate(ApiKey.METADATA)

    async def conversation(proxy):
        async with behind(proxy, stablelog_broker) as client:
            txn = client.transaction(timeout=TIMEOUT_S)
            called_off, cancel = threading.Event(), writing_of(txn).cancel
            writing_of(txn).cancel = lambda: (cancel(), called_off.set())
            write = asyncio.create_task(txn.write(topic, b"v", key=b"k"))
            await until(gate.reached)
            commit = asyncio.create_task(txn.commit())
            await asyncio.sleep(0)  # it waits for the write
            commit.cancel()
            await until(called_off)
            gate.opened.set()
            with pytest.raises(asyncio.CancelledError):
                await commit
            with pytest.raises(RefusedError, match="cancelled"):
                await write
            with pytest.raises(RefusedError, match="cancelled"):
                await txn.commit()

    with Proxy((stablelog_broker.host, stablelog_broker.port), gate) as proxy:
        run(conversation(proxy))


def test_the_loop_goes_on_while_a_block_is_left_and_another_task_writes(stablelog_broker, run, topic):
    another = create(stablelog_broker.bootstrap)
    asking, aborting = Gate(ApiKey.METADATA), Gate(ApiKey.ABORT_JOINT)
    asking.key = None  # not yet

    def gates(key, count):
        asking(key, count)
        aborting(key, count)

    async def conversation(proxy):
        async with behind(proxy, stablelog_broker) as client:
            txn = client.transaction(timeout=TIMEOUT_S)
            first = await txn.write(topic, b"v", key=b"k")
            await internals.flush_soon(txn)  # so that there is something to abort
            asking.key = ApiKey.METADATA
            write = asyncio.create_task(txn.write(another, b"v", key=b"k"))
            await until(asking.reached)
            leaving = asyncio.create_task(txn.__aexit__(KeyError, KeyError("mine"), None))
            await asyncio.sleep(0)
            asking.opened.set()
            await until(aborting.reached)
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not leaving.done()
            aborting.opened.set()
            await leaving
            with pytest.raises(RefusedError, match="KeyError"):
                await write
            with pytest.raises(RefusedError, match="KeyError"):
                await first

    with Proxy((stablelog_broker.host, stablelog_broker.port), gates) as proxy:
        run(conversation(proxy))


@pytest.mark.extended
def test_a_write_that_waits_for_room_can_be_cancelled(stablelog_broker, run, topic, monkeypatch):
    """Nothing is acknowledged, so writes wait: that is the back-pressure. What is buffered stays bounded."""
    monkeypatch.setattr("stablelog.client.core.producer.QUEUE_SIZE_MAX", 50_000)
    monkeypatch.setattr(record_buffer, "BATCH_SIZE_MAX", 10_000)
    gate = Gate(PRODUCE)
    put = []

    async def conversation(proxy):
        async with behind(proxy, stablelog_broker) as client:

            async def work():
                async with client.transaction(timeout=TIMEOUT_S) as txn:
                    while True:
                        put.append(await txn.write(topic, bytes(1000), key=b"k", partition=0))

            working = asyncio.create_task(work())
            await until(gate.reached)
            before = -1
            while before < len(put):  # until no more is taken
                before = len(put)
                await asyncio.sleep(0.2)
            assert 0 < len(put) < 300
            working.cancel()
            gate.opened.set()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert all(isinstance(future.exception(), RefusedError) for future in put)
        assert visible(stablelog_broker.bootstrap, topic) == {}

    with Proxy((stablelog_broker.host, stablelog_broker.port), gate) as proxy:
        run(conversation(proxy))


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["write", "commit"])
def test_a_broker_that_is_away_holds_nobody_who_is_cancelled(run, moment):
    """It would be asked again for minutes."""
    with stablelog.serve() as broker:
        topic = create(broker.bootstrap)

        away = threading.Event()

        def lose(key, count):
            if key == ApiKey.COMMIT_JOINT and count == 1:
                broker.kill()
                away.set()
                return "request"
            return None

        async def conversation(proxy):
            async with behind(proxy, broker, deadline=600) as client:
                txn, futures = client.transaction(timeout=600), []

                async def work():
                    async with txn:
                        futures.append(await txn.write(topic, b"v", key=b"k"))
                        if moment == "write":
                            broker.kill()
                            away.set()
                            await txn.write("another", b"v", key=b"k")

                working = asyncio.create_task(work())
                await until(away)
                await asyncio.sleep(0.1)
                working.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await working
                if moment == "write":
                    assert isinstance(futures[0].exception(), RefusedError | UnavailableError)
                    return
                # The commit was asked for, and nobody is there to say what became of it: ask again.
                assert not futures[0].done()
                await asyncio.to_thread(broker.start)
                assert not writing_of(txn).cluster.are_retries_cancelled
                with suppress(RefusedError):
                    await txn.commit()
                assert futures[0].done()
                committed = futures[0].exception() is None
                assert len(visible(broker.bootstrap, topic)) == committed

        with Proxy((broker.host, broker.port), lose) as proxy:
            run(conversation(proxy))


@pytest.mark.extended
def test_a_reader_can_be_cancelled_and_left_at_any_moment(stablelog_broker, run, topic):
    async def conversation():
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as writer, writer.transaction() as txn:
            await txn.write(topic, b"v", key=b"k")
        client = stablelog.aio.connect(stablelog_broker.bootstrap)
        sole = clusters_of(client)
        for patience in (0, 0.001, 0.005, 0.02, 0.1):

            async def read(patience=patience):
                async with asyncio.timeout(patience):
                    async for _ in client.read(topic, cut=True):
                        pass

            with pytest.raises(TimeoutError):
                await read()
            assert len(sole.idle) == 1
            assert not sole.idle[0].core.are_retries_cancelled
        reader = client.read(topic)
        await anext(reader)
        assert not sole.idle
        await reader.aclose()
        assert len(sole.idle) == 1
        await client.close()

    run(conversation())


def test_a_second_event_loop_is_refused_by_each_call(stablelog_broker):
    topic, group = create(stablelog_broker.bootstrap), unique("group")

    async def begin():
        client = stablelog.aio.connect(stablelog_broker.bootstrap)
        async with client.transaction() as txn:
            await txn.write(topic, b"v")
        reader, member = client.read(topic), client.subscribe(topic, group=group)
        await anext(reader)
        await anext(member)
        return client, reader, member

    client, reader, member = asyncio.run(begin())

    async def refused():
        for call in (
            client.transaction,
            lambda: client.subscribe(topic, group=group),
            lambda: anext(client.read(topic)),
            lambda: anext(reader),
            lambda: anext(member),
            member.commit,
            client.admin.topics.list,
        ):
            with pytest.raises(UsageError, match="make a client in each event loop"):
                await call()
        await reader.close()
        await client.close()  # also of connections whose event loop is closed

    asyncio.run(refused())


def test_the_asyncio_client_starts_no_thread_for_an_ip_address(stablelog_broker):
    topic = create(stablelog_broker.bootstrap)
    before, seen = set(threading.enumerate()), []

    async def look():
        while True:
            seen.append(set(threading.enumerate()) - before)
            await asyncio.sleep(0)

    async def conversation():
        looking = asyncio.create_task(look())
        async with stablelog.aio.connect(stablelog_broker.bootstrap) as client:
            async with client.transaction() as txn:
                await txn.write(topic, b"v", key=b"k")
            async with client.transaction() as txn:
                await txn.write(topic, b"aborted", key=b"k")
                await txn.abort()
            found = [one async for one in client.read(topic, wait=0.05)]
        looking.cancel()
        assert [[record.value for record in one.records] for one in found] == [[b"v"]]

    asyncio.run(conversation())
    assert len(seen) > 10
    assert not any(seen)
