"""Forks, signals, threads, event loops and the end of a process: the table of docs/reference/client.md, row by row."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import stablelog
from stablelog.client.core.positions import Position
from stablelog.errors import RefusedError, UsageError
from tests import documented
from tests.client.transactions import create, state_of, visible
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = documented.page("client.md")
SHARED = """
import asyncio, gc, json, os, sys, time, stablelog
bootstrap, topic = sys.argv[1:]

def told(**more):
    os.write(1, (json.dumps(more) + "\\n").encode())

def wait_for(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def program(broker, topic, text):
    """Run a program that forks; its processes write lines of JSON. Returns the lines."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARED + text, broker.bootstrap, topic],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_each_at_its_position(broker, topic, lines, count):
    found = {Position(*line["at"]): line["value"].encode() for line in lines if "at" in line}
    assert len(found) == count
    assert visible(broker.bootstrap, topic) == found


def a_child_uses_the_client(broker, topic):
    lines = program(
        broker,
        topic,
        """
client = stablelog.connect(bootstrap)
def put(value):
    with client.transaction() as txn:
        future = txn.write(topic, value)
    told(at=future.result(), value=value)
put("before")
child = os.fork()
for number in range(20):
    put(f"{'parent' if child else 'child'} {number}")
if child:
    wait_for(child)
""",
    )
    assert_each_at_its_position(broker, topic, lines, 41)


def a_child_with_asyncio_uses_the_client(broker, topic):
    lines = program(
        broker,
        topic,
        """
client = stablelog.aio.connect(bootstrap)
async def put(value):
    async with client.transaction() as txn:
        future = await txn.write(topic, value)
    told(at=await future, value=value)
async def some(who):
    for number in range(10):
        await put(f"{who} {number}")
async def main():
    await put("before")
    child = os.fork()
    if not child:
        try:
            asyncio.run(some("child"))
            gc.collect()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    await asyncio.to_thread(wait_for, child)
    await some("parent")  # on the connections of before
asyncio.run(main())
""",
    )
    assert_each_at_its_position(broker, topic, lines, 21)


def a_transaction_times_out_in_a_child(broker, topic):
    (line,) = program(
        broker,
        topic,
        """
client = stablelog.connect(bootstrap)
with client.transaction() as txn:
    txn.write(topic, "before")
    child = os.fork()
    if not child:
        future = client.transaction(timeout=0.2).write(topic, "late")
        told(error=type(future.exception(60)).__name__)
        os._exit(0)
wait_for(child)
""",
    )
    assert line == {"error": "TransactionAbortedError"}


def a_child_uses_what_the_parent_has_begun(broker, topic):
    lines = program(
        broker,
        topic,
        """
client = stablelog.connect(bootstrap)
with client.transaction() as txn:
    txn.write(topic, "first")
reader = client.read(topic, wait=0)
next(reader)
txn = client.transaction()
future = txn.write(topic, "parent")
child = os.fork()
if not child:
    for call in (lambda: txn.write(topic, "child"), txn.commit, txn.abort, lambda: next(reader)):
        try:
            call()
        except stablelog.UsageError as error:
            told(refused=str(error))
    gc.collect()
    sys.exit(0)
wait_for(child)
told(count=txn.commit().commit_sequence, at=future.result())
""",
    )
    assert len(lines) == 5
    assert all(
        "from which this process was forked. Begin another one here" in line["refused"] for line in lines[:4]
    )
    assert sorted(visible(broker.bootstrap, topic).values()) == [b"first", b"parent"]


def a_child_leaves_the_block(broker, topic):
    program(
        broker,
        topic,
        """
with stablelog.connect(bootstrap) as client:
    with client.transaction() as txn:
        txn.write(topic, "1")
        child = os.fork()
        if not child:
            sys.exit(0)
        wait_for(child)
        txn.write(topic, "2")
    with client.transaction() as txn:
        txn.write(topic, "3")
""",
    )
    assert sorted(visible(broker.bootstrap, topic).values()) == [b"1", b"2", b"3"]


class InterruptError(Exception):
    """What the handler of the tests raises."""


def signalled(work, act):
    """Run `work` in the main thread while a thread sends it SIGUSR1; `act` is the handler, not within itself.

    SIGALRM is left to pytest-timeout, which ends a test with it.
    """
    is_busy, ended = [], []
    main = threading.get_ident()

    def handle(*_):
        if not is_busy and not ended:
            is_busy.append(1)
            try:
                act()
            finally:
                is_busy.clear()

    def send():
        while not ended:
            signal.pthread_kill(main, signal.SIGUSR1)
            time.sleep(0.003)

    sender = threading.Thread(target=send)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        try:
            sender.start()
            work()
        finally:
            ended.append(1)
    finally:
        ended.append(1)  # the handler may have raised before the first one
        if sender.ident is not None:
            sender.join()
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def finalizers_interrupted():
    """A handler may raise in a finalizer, where Python prints the exception and goes on. It may raise again in the hook by
    which pytest reports that, which fails the test.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _unraisable: None
    try:
        yield
    finally:
        sys.unraisablehook = hook


def a_handler_raises(broker, topic):
    """The program goes on after an exception in `write`, and commits again after one in `commit`."""
    with stablelog.connect(broker.bootstrap) as client:
        expected = {}
        for number in range(10):
            txn, written = client.transaction(), []
            state = {"left": 1 + number % 3}

            def interrupt(state=state):
                if state["left"]:
                    state["left"] -= 1
                    raise InterruptError

            def work(txn=txn, written=written, number=number):
                for n in range(300):
                    value = b"%d-%d" % (number, n)
                    with suppress(InterruptError, RefusedError):
                        written.append((txn.write(topic, value), value))
                with suppress(InterruptError, RefusedError):
                    txn.commit()

            with suppress(InterruptError), finalizers_interrupted():
                signalled(work, interrupt)
            try:
                committed = txn.commit()
            except RefusedError:
                assert all(future.exception(0) is not None for future, _ in written)
            else:
                assert committed.first is not None or not written
                expected |= {future.result(0): value for future, value in written}
    found = visible(broker.bootstrap, topic)
    assert {position: found.get(position) for position in expected} == expected
    assert len(found) - len(expected) <= 10, "an exception that comes just behind a write hides its future"


def a_handler_calls_the_transaction_that_it_interrupts(broker, topic):
    with stablelog.connect(broker.bootstrap) as client:
        refused, box = [], {}

        def act():
            try:
                box["txn"].write(topic, b"of the handler")
            except UsageError as error:
                refused.append(str(error))
            except RefusedError:
                pass

        def work():
            end = time.monotonic() + 60
            while not refused and time.monotonic() < end:
                box["txn"] = client.transaction()
                for _ in range(50):
                    box["txn"].write(topic, bytes(2000))
                box["txn"].commit()

        box["txn"] = client.transaction()
        signalled(work, act)
        assert "is in use by this thread: a signal handler has interrupted one of its calls" in refused[0]
        with client.transaction() as txn:
            future = txn.write(topic, b"after")
        assert future.result(0)


def a_handler_uses_the_client(broker, topic):
    client, ended = stablelog.connect(broker.bootstrap), []

    def act():
        client.transaction().abort()
        ended.append(1)

    def work():
        end = time.monotonic() + 60
        while len(ended) < 30 and time.monotonic() < end:
            client.transaction().abort()

    signalled(work, act)
    assert len(ended) >= 30
    closed = []

    def close():
        client.close()
        closed.append(1)

    signalled(lambda: until(lambda: closed, "the handler has not closed it"), close)
    with pytest.raises(RefusedError, match="is closed"):
        client.transaction()


def a_callback_uses_the_transaction(broker, topic):
    with stablelog.connect(broker.bootstrap) as client:
        txn, seen = client.transaction(), []
        for number in range(5):
            future = txn.write(topic, b"%d" % number)
            future.add_done_callback(lambda _: seen.append(txn.commit()))
        committed = txn.commit()
        assert seen == [committed] * 5


def threads_share(broker, topic):
    with (
        stablelog.connect(broker.bootstrap) as client,
        client.transaction() as txn,
        ThreadPoolExecutor(4) as pool,
    ):
        written = list(pool.map(lambda n: (txn.write(topic, b"%d" % n), b"%d" % n), range(200)))
    assert visible(broker.bootstrap, topic) == {future.result(0): value for future, value in written}


def another_loop(broker, topic):
    client = stablelog.aio.connect(broker.bootstrap)

    async def begin():
        return client.transaction()

    async def use(call):
        with pytest.raises(UsageError, match="in another event loop"):
            await call()

    txn = asyncio.run(begin())
    for call in (begin, txn.commit, lambda: txn.write(topic, None), lambda: anext(client.read(topic))):
        asyncio.run(use(call))


def the_process_ends(broker, topic):
    began = time.monotonic()
    (line,) = program(
        broker,
        topic,
        """
client = stablelog.connect(bootstrap)
txn = client.transaction(timeout=600)
txn.write(topic, "open")
from stablelog.client import internals
internals.flush(txn)
told(id=internals.writing_of(txn).transactional_id)
""",
    )
    assert time.monotonic() - began < 60
    assert state_of(broker.bootstrap, line["id"]) == "Ongoing", "the broker aborts it at its timeout"
    assert visible(broker.bootstrap, topic) == {}


ROWS = {
    "Several threads use one client or one transaction.": threads_share,
    "A forked process uses the client.": a_child_uses_the_client,
    "A process that was forked by a program with asyncio uses the client.": a_child_with_asyncio_uses_the_client,
    "A transaction that a forked process has begun reaches its timeout.": a_transaction_times_out_in_a_child,
    "A forked process uses a transaction or a reader of its parent.": a_child_uses_what_the_parent_has_begun,
    "A forked process leaves a `with` block of its parent by an exception, such as that of `sys.exit`.": a_child_leaves_the_block,
    "A signal handler raises an exception, such as `KeyboardInterrupt`, in `write`, `write_many` or `commit`.": a_handler_raises,
    "A signal handler calls the transaction of which it has interrupted a call.": a_handler_calls_the_transaction_that_it_interrupts,
    "A signal handler begins another transaction, or closes the client.": a_handler_uses_the_client,
    "The callback of a future calls `commit`.": a_callback_uses_the_transaction,
    "A second event loop uses a client, a transaction or a future of `stablelog.aio`.": another_loop,
    "The process ends while a transaction is open.": the_process_ends,
}


@pytest.mark.extended
@pytest.mark.parametrize("row", ROWS, ids=lambda row: ROWS[row].__name__)
def test_each_row_of_the_table_is_true(stablelog_broker, row):
    ROWS[row](stablelog_broker, create(stablelog_broker.bootstrap))


def test_the_table_has_these_rows_and_no_other():
    table = PAGE.partition("| situation | what holds |\n")[2].partition("\n\n")[0]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[1:]] == list(ROWS)
