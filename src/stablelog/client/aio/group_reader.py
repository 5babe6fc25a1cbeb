"""A reader of a consumer group, for asyncio programs. `AsyncClient.subscribe` makes it."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import datetime
from types import TracebackType
from typing import Self

from stablelog.client.aio.cancelling import to_the_end
from stablelog.client.aio.cluster import AsyncCluster
from stablelog.client.base_group_reader import BaseGroupReader
from stablelog.client.core.arguments import BATCH_RECORDS, COLLECT_S, batch_limits
from stablelog.client.core.cluster import EARLIEST, LATEST
from stablelog.client.core.group_reading import GroupReading
from stablelog.client.core.steps import Result, Steps
from stablelog.client.core.times import milliseconds
from stablelog.client.core.transaction_stream import ReadRecord
from stablelog.errors import StablelogError, UsageError


class AsyncGroupReader(BaseGroupReader[AsyncCluster], AsyncIterator[ReadRecord]):
    """A member of a consumer group: an asynchronous iterator of the records of its assigned partitions. Only one task
    at a time may use the reader.

    Calls of the reader send the heartbeats of the member. If the program does not call the reader within the group's
    session timeout, the group assigns the partitions to other members. After a cancelled call, the next call continues
    where the reader was.

    Args:
        cluster: the connections to the brokers. Until the reader is closed, nothing else uses them.
        reading: the object of `client.core` that has the state of the reader and decides what its calls do.
        wait_s: how long to wait for the next record before an iteration ends; None for no limit.
        give_back: called with `cluster` when the reader is closed, so that others can use the connections.
        check_loop: raises UsageError in an event loop that is not that of the client.
    """

    def __init__(
        self,
        cluster: AsyncCluster,
        reading: GroupReading,
        wait_s: float | None,
        give_back: Callable[[AsyncCluster], None],
        check_loop: Callable[[], None],
    ) -> None:
        super().__init__(cluster, reading, wait_s, give_back)
        self._check_loop = check_loop
        self._ended = asyncio.Event()  # set when a call has ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_own:  # a forked process leaves the block: the reader is that of the parent process
            await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReadRecord:
        """Return the next record. The iteration ends if no record comes for `wait` seconds (the argument of
        `subscribe`); the program may begin another one.

        Raises:
            RefusedError: the broker refuses the member, or to read a partition.
            UnavailableError: the group's coordinator does not respond within the deadline. The call may be repeated.
            DataLossError: records were removed before they were read. The next call continues at the first record that
                is left.
            DamageError: a batch is damaged; the message names it.
            UsageError: the reader is closed, or was made in the process from which this one was forked.
        """
        self._check_process()
        with self._calls.lock_if_free():
            record = self._reading.take_ready_record(time.monotonic())
            if record is not None:
                return record
            records = await self._read(1, 0.0)
        if not records:
            raise StopAsyncIteration
        return records[0]

    def batches(
        self, max_records: int = BATCH_RECORDS, max_wait: float = COLLECT_S
    ) -> AsyncGenerator[list[ReadRecord], None]:
        """Return an iterator of batches: lists of records. The iteration ends if no record comes for `wait` seconds
        (the argument of `subscribe`); the program may begin another one.

        Args:
            max_records: maximum of records in a list.
            max_wait: how many seconds the reader waits for more records after the first one.

        Raises:
            TypeError: an argument has a wrong type.
            UsageError: an argument is out of range.
        """
        return self._batches(*batch_limits(max_records, max_wait))

    async def _batches(self, max_records: int, max_wait: float) -> AsyncGenerator[list[ReadRecord], None]:
        while records := await self._next_batch(max_records, max_wait):
            yield records

    async def _next_batch(self, max_records: int, max_wait: float) -> list[ReadRecord]:
        with self._calls.lock_if_free():
            return await self._read(max_records, max_wait)

    async def _read(self, count_max: int, collect_s: float) -> list[ReadRecord]:
        try:
            return await self._steps(self._reading.read_records(count_max, self._wait_s, collect_s))
        except BaseException:
            self._reading.undo_last_read()
            raise

    async def _run(self, steps: Steps[Result]) -> Result:
        with self._calls.lock_if_free():
            return await self._steps(steps)

    async def _steps(self, steps: Steps[Result]) -> Result:
        self._check_process()
        self._check_loop()
        self._ended.clear()
        try:
            return await to_the_end(self._cluster.run(steps), self._cluster.cancel)
        except StablelogError as error:
            if self._reading.is_closing and not isinstance(error, UsageError):
                raise UsageError("this reader is closed: subscribe again") from error
            raise
        finally:
            self._cluster.core.allow_retries()
            self._ended.set()

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue at an offset of an assigned partition.

        The next commit, of `commit` or of a transaction, commits this offset, or the offset after the last record that
        the program has got since. If a transaction does not commit, the reader goes back to this offset.

        Args:
            topic: the topic.
            partition: the partition; one of `assignment`.
            offset: the offset of the next record.

        Raises:
            OffsetOutOfRangeError: the offset is not in the log.
            RefusedError: the user may not read the partition.
            UnavailableError: no response within the deadline.
            UsageError: the partition is not assigned to this reader, or a transaction of this reader is open; or the reader
                is closed, or was made in another process.
        """
        await self._run(self._seek(topic, partition, offset))

    async def seek_to_time(
        self, time: datetime | int, topic: str | None = None, partition: int | None = None
    ) -> None:
        """Continue at the first record at or after a time, in each assigned partition; at the end if there is none.

        Args:
            time: a datetime with a time zone, or milliseconds since 1970; not before 1970. 0 means the beginning.
            topic: only this topic; None for all.
            partition: only this partition of the topic; None for all.

        Raises:
            The errors of `seek`.
        """
        await self._run(self._seek_to(milliseconds(time), topic, partition))

    async def seek_to_beginning(self, topic: str | None = None, partition: int | None = None) -> None:
        """Continue at the first stored record, in each assigned partition.

        Args:
            topic: only this topic; None for all.
            partition: only this partition of the topic; None for all.

        Raises:
            The errors of `seek`.
        """
        await self._run(self._seek_to(EARLIEST, topic, partition))

    async def seek_to_end(self, topic: str | None = None, partition: int | None = None) -> None:
        """Continue after the last record, in each assigned partition.

        Args:
            topic: only this topic; None for all.
            partition: only this partition of the topic; None for all.

        Raises:
            The errors of `seek`.
        """
        await self._run(self._seek_to(LATEST, topic, partition))

    async def commit(self) -> None:
        """Commit the offsets of all records that the reader has handed out. Do not call this if a transaction commits
        the offsets (`offsets_of`).

        Raises:
            RefusedError: the group has given some partitions to another member, which reads their records again. The
                offsets of the other partitions are committed.
            UnavailableError: the coordinator does not respond within the deadline. The call may be repeated.
            UsageError: a transaction of this reader is open; or the reader is closed, or was made in another process.
        """
        await self._run(self._reading.commit())

    async def close(self) -> None:
        """Close the reader: it leaves the group, which assigns its partitions to other members at once. No offset is
        committed.
        """
        if self._reading.is_closed:
            return
        self._check_process()
        self._check_loop()
        if self._calls.is_running and not self._reading.is_closing:
            self._reading.is_closing = True
            self._cluster.cancel()  # a call of another task ends
        while self._calls.is_running:
            await self._ended.wait()
        if self._reading.is_closed:
            return
        self._reading.is_closing = True
        try:
            await self._run(self._reading.close())
        finally:
            self._give_back(self._cluster)

    aclose = close  # the name that `contextlib.aclosing` calls
