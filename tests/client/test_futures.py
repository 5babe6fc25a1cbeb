"""Futures of records: when they are done, what they say, and how little they and the records take."""

import asyncio
import gc
import threading
import tracemalloc

import pytest

from stablelog.client.core.outcomes import Committed, aborted_error
from stablelog.client.core.positions import Position
from stablelog.client.core.record_buffer import ManyRecords, RecordBuffer
from stablelog.client.futures import AsyncWriteFuture, TransactionEnd, WriteFuture, WriteManyFuture
from stablelog.errors import TransactionAbortedError, UsageError

COMMITTED = Committed(1, None, None)


def written(end, kind=WriteFuture, count=1):
    """The futures of records, whose offsets are 10, 11 and so on after the commit."""
    buffer = RecordBuffer()
    buffer.partition_counts["t"] = 1
    futures = [kind(end, *buffer.add_record("t", b"v", None, (), None, 0)) for _ in range(count)]
    buffer.partitions["t", 0].offsets = range(10, 10 + count)
    return futures


def position(offset):
    return Position("t", 0, offset)


def test_a_result_is_there_when_the_transaction_has_ended():
    end = TransactionEnd()
    first, second = written(end, count=2)
    assert not first.done()
    for call in (first.result, first.exception):
        for timeout in (0, -1, 0.001):
            with pytest.raises(TimeoutError, match="has not ended within the timeout"):
                call(timeout)
    assert repr(first) == "<WriteFuture of a record in t-0: pending>"
    end.set_outcome(COMMITTED)
    assert first.done()
    assert second.done()
    assert (first.result(), second.result(timeout=1e30)) == (position(10), position(11))
    assert first.exception() is None
    assert repr(second) == "<WriteFuture of a record in t-0: Position(topic='t', partition=0, offset=11)>"


def test_after_an_abort_each_future_has_the_error():
    end, error = TransactionEnd(), aborted_error("it was late")
    futures = written(end, count=2)
    end.set_outcome(error)
    end.set_outcome(COMMITTED)  # nothing changes it any more
    for future in futures:
        assert future.exception() is error
        with pytest.raises(TransactionAbortedError, match="it was late"):
            future.result()
        assert "it was late" in repr(future)


def test_threads_that_wait_are_woken():
    waiting = threading.Semaphore(0)

    class Noting(TransactionEnd):
        def add_waker(self, waker):
            super().add_waker(waker)
            waiting.release()

    end, found = Noting(), []
    (future,) = written(end)
    threads = [threading.Thread(target=lambda: found.append(future.result(60))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        waiting.acquire()
    end.set_outcome(COMMITTED)
    assert not end.is_announced
    end.announce()
    for thread in threads:
        thread.join(60)
    assert found == [position(10)] * 4
    assert end.is_announced


def test_callbacks_are_called_once_in_their_order_and_their_errors_are_logged(caplog):
    end, seen = TransactionEnd(), []
    first, second = written(end, count=2)

    def failing(future):
        seen.append(("failing", future))
        raise KeyError("mine")

    def waiting(future):
        seen.append(("waiting", future.result(), second.result()))
        future.add_done_callback(lambda _: seen.append("inner"))
        end.announce()

    first.add_done_callback(failing)
    first.add_done_callback(waiting)
    second.add_done_callback(seen.append)
    end.announce()
    assert seen == []
    end.set_outcome(COMMITTED)
    end.announce()
    end.announce()
    assert seen[:2] == [("failing", first), ("waiting", position(10), position(11))]
    assert sorted(map(repr, seen[2:])) == sorted([repr("inner"), repr(second)])
    assert "has failed" in caplog.text
    assert "KeyError: 'mine'" in caplog.text
    first.add_done_callback(seen.append)
    assert seen[-1] is first


def test_a_callback_that_comes_while_the_transaction_ends_is_called_once():
    for _ in range(200):
        end, seen = TransactionEnd(), []
        (future,) = written(end)
        start = threading.Barrier(2)

        def add(start=start, future=future, seen=seen):
            start.wait()
            future.add_done_callback(seen.append)

        thread = threading.Thread(target=add)
        thread.start()
        start.wait()
        end.set_outcome(COMMITTED)
        end.announce()
        thread.join()
        end.announce()
        assert seen == [future]


def test_an_asyncio_future_is_awaited():
    async def conversation():
        end, seen = TransactionEnd(), []
        first, second = written(end, AsyncWriteFuture, 2)
        for call in (first.result, first.exception):
            with pytest.raises(asyncio.InvalidStateError, match="await the future"):
                call()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first, 0.001)
        first.add_done_callback(seen.append)
        waiting = asyncio.gather(first, second, first)
        await asyncio.sleep(0)
        end.set_outcome(COMMITTED)
        end.announce()
        assert seen == []
        assert await waiting == [position(10), position(11), position(10)]
        assert seen == [first]
        assert (first.result(), first.exception(), await second) == (position(10), None, position(11))
        assert end.is_announced

    asyncio.run(conversation())


def test_the_future_of_many_records_has_a_list():
    buffer, end = RecordBuffer(), TransactionEnd()
    buffer.partition_counts["t"] = 1
    many = ManyRecords([b"v"] * 3, None, (), None, 0)
    assert many.add_to(buffer, "t")
    future = WriteManyFuture(end, many)
    assert repr(future) == "<WriteManyFuture of 3 records: pending>"
    assert len(future) == 3
    buffer.partitions["t", 0].offsets = range(5, 8)
    end.set_outcome(COMMITTED)
    assert future.result() == [position(5), position(6), position(7)]


def test_the_future_of_many_records_shows_the_first_and_the_last_position():
    buffer, end = RecordBuffer(), TransactionEnd()
    buffer.partition_counts["t"] = 1
    futures = []
    for count in (0, 1, 1000):
        many = ManyRecords([b"v"] * count, None, (), None, 0)
        while not many.add_to(buffer, "t"):
            buffer.take_due_batches()
        futures.append(WriteManyFuture(end, many))
    buffer.partitions["t", 0].offsets = range(1001)
    end.set_outcome(COMMITTED)
    assert [repr(future) for future in futures] == [
        "<WriteManyFuture of 0 records: []>",
        f"<WriteManyFuture of 1 records: {[position(0)]}>",
        f"<WriteManyFuture of 1000 records: {position(1)} to {position(1000)}>",
    ]


def test_each_call_raises_the_error_with_its_own_traceback():
    end = TransactionEnd()
    futures = written(end, count=100)
    end.set_outcome(aborted_error("it was late"))
    for future in futures:
        with pytest.raises(TransactionAbortedError) as raised:
            future.result()
        assert len(raised.traceback) <= 3


def test_a_waiter_is_dropped_without_a_look_at_the_others():
    class Waker:
        compared = 0

        def __init__(self, number):
            self.number = number

        def __hash__(self):
            return hash(self.number)

        def __eq__(self, other):
            Waker.compared += 1
            return self.number == other.number

        def __call__(self):
            raise AssertionError("it was dropped")

    end = TransactionEnd()
    wakers = [Waker(number) for number in range(1000)]
    for waker in wakers:
        end.add_waker(waker)
    for waker in reversed(wakers):
        end.remove_waker(waker)
    assert Waker.compared < 1000
    end.set_outcome(COMMITTED)
    end.announce()


def test_a_future_is_awaited_only_in_the_event_loop_of_its_transaction():
    async def begun():
        return written(TransactionEnd(asyncio.get_running_loop()), AsyncWriteFuture)[0]

    async def elsewhere(future):
        with pytest.raises(UsageError, match="begun in another event loop"):
            await asyncio.wait_for(future, 60)
        with pytest.raises(UsageError, match="begun in another event loop"):
            future.add_done_callback(print)

    asyncio.run(elsewhere(asyncio.run(begun())))


def memory_of(make):
    """What an object takes, with all that it holds."""
    make(10)  # what is made once
    tracemalloc.start()
    try:
        held = make(5000)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / 5000, held
    finally:
        tracemalloc.stop()


KEYS = [b"%08d" % number for number in range(5000)]
VALUE = bytes(100)


def buffered(count, *, is_kept):
    buffer, end, kept = RecordBuffer(), TransactionEnd(), []
    buffer.partition_counts["t"] = 4
    for number in range(count):
        future = WriteFuture(end, *buffer.add_record("t", VALUE, KEYS[number], (), None, 1_700_000_000_000))
        if is_kept:
            kept.append(future)
    return buffer, kept


@pytest.mark.extended
def test_a_record_of_100_bytes_takes_at_most_250():
    size, _ = memory_of(lambda count: buffered(count, is_kept=True))
    assert 100 < size <= 250
    size, _ = memory_of(lambda count: buffered(count, is_kept=False))
    assert 100 < size <= 160


@pytest.mark.extended
def test_a_record_that_was_sent_takes_nothing_but_its_future():
    def sent(count, *, is_kept):
        buffer, kept = buffered(count, is_kept=is_kept)
        for number, one in enumerate(buffer.take_all_batches()):
            one.records.add_sent_batch(number, one.batch.count)
        return buffer, kept

    size, _ = memory_of(lambda count: sent(count, is_kept=True))
    assert size <= 100
    size, _ = memory_of(lambda count: sent(count, is_kept=False))
    assert size <= 1


def test_many_records_take_nothing_but_a_reference_after_they_were_sent():
    def sent(count):
        buffer = RecordBuffer()
        buffer.partition_counts["t"] = 4
        many = ManyRecords([VALUE] * count, KEYS[:count], (), None, 1_700_000_000_000)
        assert many.add_to(buffer, "t")
        for number, one in enumerate(buffer.take_all_batches()):
            one.records.add_sent_batch(number, one.batch.count)
        return many

    size, _ = memory_of(sent)
    assert size <= 10
