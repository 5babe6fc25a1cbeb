"""No call takes longer than its deadline, whatever the network does, and a cancelled call ends at once."""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

import stablelog
from stablelog.client import call_threads
from stablelog.client.core import writing
from stablelog.errors import OutcomeUnknownError, TransactionAbortedError, UnavailableError
from stablelog.testing.faulty_broker import FaultyBroker
from tests.client.transactions import create, flush, visible, writing_of
from tests.waiting import until

DEADLINE_S = 0.5
# The promise is 0.5 s above the deadline. The machine of the tests may be busy, and what is broken takes 10 s.
PATIENCE_S = 4


@contextmanager
def silent(answer=None):
    """The address of a listener that accepts connections and does not answer; or sends what `answer` gives it to send."""
    accepted = []

    def serve():
        with suppress(OSError):
            while True:
                accepted.append(server.accept()[0])
                if answer is not None:
                    threading.Thread(target=answer, args=(accepted[-1],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for each in accepted:
        each.close()


@contextmanager
def black_hole():
    """The address of a listener whose queue is full: the system drops what begins a connection."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for each in waiting:
            each.close()


@contextmanager
def trickle():
    """A broker that sends one byte now and then: each is in time."""
    ended = threading.Event()

    def answer(connection):
        with suppress(OSError):
            connection.sendall(b"\0\0\1\0")
            while not ended.wait(0.05):
                connection.sendall(b"\0")

    with silent(answer) as address:
        yield address
        ended.set()


@contextmanager
def slow_names():
    """A name that is not resolved before the end."""
    known, hanging = socket.getaddrinfo, threading.Event()

    def slow(host, *more, **named):
        if host == "slow.invalid":
            if aside_flags(more):
                raise socket.gaierror
            hanging.wait(60)
            raise socket.gaierror
        return known(host, *more, **named)

    socket.getaddrinfo = slow
    try:
        yield "slow.invalid:9092"
    finally:
        hanging.set()
        socket.getaddrinfo = known
        until(lambda: not asides(), "threads are left")


def aside_flags(more):
    return socket.AI_NUMERICHOST in more


def asides():
    return [thread for thread in threading.enumerate() if thread.name == "stablelog-call"]


def duration(call, error=UnavailableError):
    began = time.monotonic()
    with pytest.raises(error) as raised:
        call()
    return time.monotonic() - began, raised.value


NETWORKS = [silent, black_hole, trickle, slow_names]


@pytest.mark.extended
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
@pytest.mark.parametrize("call", ["write", "read"])
def test_no_call_to_a_broker_that_cannot_be_reached_takes_longer(face, network, call):
    with network() as address, face.connect(address, DEADLINE_S) as client:
        if call == "write":
            took, _ = duration(lambda: client.transaction().write("t", "v", key="k"))
        else:
            took, _ = duration(lambda: next(iter(client.read("t"))))
    assert took < PATIENCE_S


@pytest.fixture(scope="module")
def stopped_broker():
    """A broker that a test can stop (SIGSTOP): its connections stay open, and nothing answers."""
    with stablelog.serve() as broker:
        yield broker


@contextmanager
def standing_still(broker):
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.extended
@pytest.mark.parametrize("call", ["write", "commit", "abort", "read", "flush"])
def test_no_call_to_a_broker_that_stands_still_takes_longer(stopped_broker, face, call):
    topic, another = create(stopped_broker.bootstrap), create(stopped_broker.bootstrap)
    with face.connect(stopped_broker.bootstrap, 60) as client:
        with client.transaction() as txn:
            txn.write(topic, "1", key="k")
        reader = client.read(topic)
        next(reader)
        txn = client.transaction()
        future = txn.write(topic, "2", key="k")
        if call != "commit":
            flush(txn)
        writing_of(txn).cluster.deadline_s = DEADLINE_S
        with standing_still(stopped_broker):
            if call == "write":
                took, _ = duration(lambda: txn.write(another, "v", key="k"))
            elif call == "read":
                with face.connect(stopped_broker.bootstrap, DEADLINE_S) as brief:
                    took, _ = duration(lambda: next(iter(brief.read(topic))))
            elif call == "abort":
                began = time.monotonic()
                txn.abort()
                took = time.monotonic() - began
            elif call == "flush":  # the request for the commit
                took, unknown = duration(txn.commit, OutcomeUnknownError)
            else:
                took, _ = duration(txn.commit, TransactionAbortedError)
                assert future.done()
        assert took < PATIENCE_S
        if call == "flush":
            writing_of(txn).cluster.deadline_s = 60
            unknown.transaction.commit() if face.name == "threads" else txn.commit()
            assert future.result(0)
        reader.close()


@pytest.mark.extended
def test_each_call_of_a_reader_has_the_whole_deadline(tmp_path, face):
    """A loop that asks a waiting reader again does not spin while no broker answers."""
    with stablelog.serve(tmp_path) as broker:
        topic = create(broker.bootstrap)
        with face.connect(broker.bootstrap, 3) as client:
            reader = client.read(topic)
            with client.transaction() as txn:
                txn.write(topic, "1")
            next(reader)
            threading.Timer(1, broker.kill).start()  # while the reader waits
            duration(lambda: next(reader))
            took, _ = duration(lambda: next(reader))
            assert 1 < took < 3 + PATIENCE_S
            reader.close()


@pytest.mark.extended
def test_one_of_several_addresses_is_enough_also_if_the_first_is_silent(stablelog_broker, face):
    topic = create(stablelog_broker.bootstrap)
    with (
        silent() as address,
        face.connect(f"{address},{stablelog_broker.bootstrap}", 8) as client,
        client.transaction() as txn,
    ):
        txn.write(topic, "v", key="k")
    assert len(visible(stablelog_broker.bootstrap, topic)) == 1


@pytest.mark.extended
def test_at_most_four_threads_are_left_behind(face):
    with slow_names() as address, face.connect(address, 0.05) as client:
        for _ in range(7):
            took, raised = duration(lambda: client.transaction().write("t", "v", key="k"))
            assert took < PATIENCE_S
            assert len(asides()) <= call_threads.THREADS_MAX
        assert len(asides()) == call_threads.THREADS_MAX
        assert "slow.invalid" in str(raised)


def test_a_thread_that_was_left_behind_serves_the_next_calls():
    with slow_names():
        for _ in range(6):
            with pytest.raises(TimeoutError, match=r"'slow\.invalid' was not resolved in time"):
                call_threads.resolve_addresses("slow.invalid", 1, 0.01)
    assert call_threads.resolve_addresses("localhost", 1, 60)
    assert call_threads.resolve_addresses("127.0.0.1", 1, 0)


@pytest.mark.parametrize("moment", ["topic", "records", "read"])
def test_a_cancelled_call_ends_at_once(stopped_broker, moment):
    topic = create(stopped_broker.bootstrap)

    async def conversation():
        async with stablelog.aio.connect(stopped_broker.bootstrap, deadline=60) as client:
            async with client.transaction() as txn:
                await txn.write(topic, "v", key="k")
            txn = client.transaction()

            async def call():
                if moment == "topic":
                    await txn.write("another", "v", key="k")
                elif moment == "records":
                    await txn.write(topic, "v", key="k")
                    await txn.commit()
                else:
                    async for _ in client.read(topic):
                        pass

            with standing_still(stopped_broker):
                began = time.monotonic()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await call()
                return time.monotonic() - began

    assert asyncio.run(conversation()) < PATIENCE_S


@pytest.mark.extended
def test_a_cancelled_commit_that_is_in_flight_says_so(caplog):
    async def conversation(broker, topic):
        async with stablelog.aio.connect(broker.bootstrap, deadline=1) as client:
            txn = client.transaction()
            future = await txn.write(topic, "v", key="k")
            broker.faults.drop("AbortJoint", count=1000, is_delivered=False)
            fault = broker.faults.drop("CommitJoint", is_delivered=False)
            broker.faults.drop("CommitJoint", count=1000, is_delivered=False)
            committing = asyncio.create_task(txn.commit())
            await asyncio.to_thread(fault.wait)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await committing
            assert isinstance(cancelled.value.__cause__, OutcomeUnknownError)
            assert not future.done()
            broker.faults.clear()
            writing_of(txn).cluster.deadline_s = 60
            assert (await txn.commit()).first == await future

    with FaultyBroker() as broker, caplog.at_level(logging.INFO, "stablelog.client"):
        asyncio.run(conversation(broker, create(broker.bootstrap)))
    assert "a cancelled task waits for the outcome of a commit that is in flight" in caplog.text


def test_the_client_logs_its_retries(caplog):
    with (
        caplog.at_level(logging.INFO, "stablelog.client"),
        stablelog.connect("127.0.0.1:1", deadline=0.1) as client,
        pytest.raises(UnavailableError),
    ):
        client.transaction().write("t", "v", key="k")
    (first, *_) = caplog.records
    assert first.name == "stablelog.client"
    assert "asking for the topics to be written: no broker responds at 127.0.0.1:1" in first.getMessage()


def test_a_cancelled_transaction_is_aborted_for_a_moment_only():
    assert writing.CANCEL_S < 0.5
