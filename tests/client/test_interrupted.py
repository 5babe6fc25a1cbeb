"""An exception at any line of a call, such as that of a signal handler, leaves futures and positions right."""

import asyncio
import contextlib
import os
import sys
import time
from functools import cache
from pathlib import Path

import pytest

import stablelog
from stablelog.client import internals
from stablelog.client.aio.cluster import AsyncCluster
from stablelog.client.aio.transaction import AsyncTransaction
from stablelog.client.blocking.connection import BlockingRunner
from stablelog.client.blocking.deadlines import TransactionDeadlines
from stablelog.client.blocking.transaction import Transaction
from stablelog.client.core import record_buffer
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.keys import WriterKey
from stablelog.client.core.positions import Position
from stablelog.client.core.writing import Writing
from stablelog.errors import RefusedError, TransactionAbortedError
from tests.client.model_broker import ADDRESS, TOPIC, ModelBroker, ModelShell
from tests.client.transactions import writing_of
from tests.scale import randomness

# How many lines of a call are tried; by night all.
LINES = int(os.environ.get("STABLELOG_LINES", "20"))
PACKAGE = Path(stablelog.__file__).parent
CLIENT = (str(PACKAGE / "client"), str(PACKAGE / "batch" / "building.py"))


class Interruption(BaseException):
    """What a signal handler raises."""


class Interrupting:
    """Raises at one line of the client, counted over all lines that are run in the block.

    The line at which a `with` block ends and the word `try` are left out. Python looks for signals after calls and
    jumps. There is neither before the lock of such a block is released, or the `try` begins; a trace function could
    raise there.
    """

    def __init__(self, at=None):
        self.at, self.count = at, 0
        self._visited = {}

    def __enter__(self):
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def enter(self, frame, _event, _argument):
        return self._line if frame.f_code.co_filename.startswith(CLIENT) else None

    def _line(self, frame, event, _argument):
        if event != "line":
            return self._line
        key = (id(frame), frame.f_lineno)
        text = _text(frame)
        is_end = key in self._visited and text.startswith(("with ", "async with "))
        self._visited[key] = frame  # the reference keeps the id of the frame
        if not is_end and text != "try:":
            self.count += 1
            if self.count == self.at:
                raise Interruption
        return self._line


@cache
def _lines(name):
    return Path(name).read_text().splitlines()


def _text(frame):
    """The line of the source at which a frame is."""
    name = frame.f_code.co_filename
    return _lines(name)[frame.f_lineno - 1].strip()


class ModelCluster(BlockingRunner):
    """The shell of the blocking client over a broker in memory."""

    def __init__(self, shell):
        self.core = Cluster(ADDRESS, deadline_s=3)
        self.perform = shell.perform


class AsyncModelCluster(AsyncCluster):
    """The shell of the asyncio client over a broker in memory."""

    def __init__(self, shell):
        super().__init__(ADDRESS, deadline_s=3)
        self._shell = shell

    async def perform(self, effect):
        await asyncio.sleep(0)
        return self._shell.perform(effect)


def begin(cluster):
    def begin(on_end):
        return cluster, Writing(
            cluster.core,
            key=WriterKey(""),
            timeout_s=1000,
            now=time.monotonic(),
            on_end=on_end,
            release=lambda _: None,
        )

    return begin


WRITES = (0, 1, 0, 0)
MANY = [b"many %d" % number for number in range(5)]


def assert_right(broker, written, futures, many, committed):
    """Either all records whose writes have returned are there, at the positions of their futures, or none."""
    assert all(future.done() for future in futures + many)
    if committed is None:
        assert broker.visible == {}
        assert all(isinstance(future.exception(), TransactionAbortedError) for future in futures + many)
        return
    positions = [future.result() for future in futures]
    positions += [position for one in many for position in one.result()]
    found = {tuple(one): value for one, value in zip(positions, written + MANY * len(many), strict=True)}
    assert found == broker.visible
    if positions:
        assert (committed.first, committed.last) == (positions[0], positions[-1])
        assert isinstance(committed.first, Position)


def run_threads(at, goes_on):
    """A transaction that is interrupted at one line. Returns how many lines it has."""
    broker = ModelBroker()
    shell = ModelShell(broker)
    cluster = ModelCluster(shell)
    txn = Transaction(begin(cluster), TransactionDeadlines())
    writing_of(txn).records.partition_counts[TOPIC] = 2
    written, futures, many, is_interrupted = [], [], [], False
    with Interrupting(at) as interrupting:
        try:
            for number, partition in enumerate(WRITES):
                try:
                    future = txn.write(TOPIC, b"%d" % number, partition=partition, timestamp_ms=0)
                except Interruption:
                    if not goes_on:
                        raise
                    is_interrupted = True
                except RefusedError:
                    break
                else:
                    futures.append(future)
                    written.append(b"%d" % number)
                if number == 1:
                    internals.flush(txn)
            try:
                many.append(txn.write_many(TOPIC, MANY, partition=1, timestamp_ms=0))
            except Interruption:
                if not goes_on:
                    raise
                is_interrupted = True
            txn.commit()
        except (Interruption, RefusedError):
            is_interrupted = True
    assert is_interrupted == (at is not None and at <= interrupting.count)
    committed = None
    with contextlib.suppress(TransactionAbortedError):
        committed = txn.commit()
    assert_right(broker, written, futures, many, committed)
    return interrupting.count


async def work_in_loop(txn, goes_on, written, futures, many):
    for number, partition in enumerate(WRITES):
        try:
            future = await txn.write(TOPIC, b"%d" % number, partition=partition, timestamp_ms=0)
        except Interruption:
            if not goes_on:
                raise
        else:
            futures.append(future)
            written.append(b"%d" % number)
        if number == 1:
            await internals.flush_soon(txn)
    try:
        many.append(await txn.write_many(TOPIC, MANY, partition=1, timestamp_ms=0))
    except Interruption:
        if not goes_on:
            raise
    await txn.commit()


def run_asyncio(at, goes_on):
    """The same with asyncio."""
    broker = ModelBroker()
    shell = ModelShell(broker)

    async def conversation():
        txn = AsyncTransaction(begin(AsyncModelCluster(shell)))
        writing_of(txn).records.partition_counts[TOPIC] = 2
        written, futures, many = [], [], []
        with Interrupting(at) as interrupting, contextlib.suppress(Interruption, RefusedError):
            await work_in_loop(txn, goes_on, written, futures, many)
        committed = None
        with contextlib.suppress(TransactionAbortedError):
            committed = await txn.commit()
        assert_right(broker, written, futures, many, committed)
        return interrupting.count

    return asyncio.run(conversation())


@pytest.mark.parametrize("run", [run_threads, run_asyncio])
@pytest.mark.parametrize("goes_on", [False, True], ids=["stops", "goes on"])
def test_an_exception_at_any_line_leaves_futures_and_positions_right(run, goes_on, monkeypatch):
    monkeypatch.setattr(record_buffer, "BATCH_SIZE_MAX", 40)  # `write_many` sends several batches
    count = run(None, goes_on)
    assert count > 300
    chosen = range(1, count + 1)
    if count > LINES:
        chosen = randomness(run.__name__, goes_on).sample(chosen, LINES)
    for at in chosen:
        try:
            run(at, goes_on)
        except BaseException as error:
            raise AssertionError(f"line {at} of {count}") from error
