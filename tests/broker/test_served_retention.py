"""From every position of a commit-ordered partition, a consumer of the broker gets every later commit, reaches the end and
has no lag, or gets an error that names what is gone: the histories of `retention_history`, fetched from the broker.
"""

import asyncio
import contextlib
import os
from collections import Counter

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.commit_order.fetch_assembler import FetchAssembler
from tests.broker.desk import opened
from tests.commit_order.retention_history import History
from tests.scale import seeds

COUNT = int(os.environ.get("STABLELOG_SERVED_HISTORIES", "2"))


class ServedHistory(History):
    """A history whose fetches a broker answers. The broker serves the partition of the history in place of its own.

    Args:
        seed: the seed.
        ask: sends a Fetch request for a position and a number of bytes, and returns the answer.
        logs: the open partitions of the topic of the broker, by index.
    """

    def __init__(self, seed, ask, logs):
        self.ask = ask
        self.logs = logs
        super().__init__(seed, has_tiers=False)

    def answered(self, position, size_max):
        partition = self.log.partition
        self.logs[0] = partition
        answer = self.ask(position, size_max)
        self.counts[f"answers {answer.error_code.name}"] += 1
        return answer

    def fetched(self, position, size_max):
        answer = self.answered(position, size_max)
        assert answer.error_code is ErrorCode.none
        assert answer.last_stable_offset == self.log.partition.last_stable_offset, "lag is counted from it"
        assert answer.log_start_offset == self.start
        assert not answer.aborted_transactions
        data = answer.records or b""
        headers = [header for _, header in headers_in(data)]
        records = [
            (record.offset, record.value.strip())
            for at, _ in headers_in(data)
            for record in decode_records(data, at)
        ]
        return records, headers

    def check_refused(self, position):
        super().check_refused(position)
        answer = self.answered(position, 1)
        assert answer.error_code is ErrorCode.offset_out_of_range
        assert answer.log_start_offset in (self.start, -1)


def run(numbers):
    """Run histories with these seeds on one broker. Return what they did."""
    counts, stack = Counter(), contextlib.AsyncExitStack()

    async def begin():
        desk = await stack.enter_async_context(opened(topics=()))
        stack.enter_context(desk.held_disk())  # the history decides what is durable
        return desk

    with asyncio.Runner() as runner:
        desk = runner.run(begin())
        topic = desk.broker.topic_files.create("t", 1, {"stablelog.order": "commit"})
        logs = desk.broker.partitions.of_topic(topic)
        own = logs[0]

        def ask(position, size_max):
            return runner.run(desk.fetch("t", 0, position, max_wait_ms=0, size_max=size_max))

        try:
            for seed in numbers:
                counts += ServedHistory(seed, ask, logs).run()
        except BaseException as failure:
            failure.add_note(f"history {seed}")
            raise
        finally:
            logs[0] = own
            runner.run(stack.aclose())
    return counts


@pytest.mark.extended
def test_from_every_position_a_consumer_gets_every_later_commit_and_reaches_the_end():
    counts = run(seeds(COUNT))
    assert counts["answers none"]
    assert counts["answers offset_out_of_range"]


def test_the_histories_find_a_fetch_that_stops_at_a_torn_transaction(monkeypatch):
    monkeypatch.setattr(FetchAssembler, "add_empty_batch", lambda self, end: None)
    with pytest.raises(AssertionError):
        run([30])
