"""A reader of a consumer group, for programs with threads. `Client.subscribe` makes it."""

import time
from collections.abc import Generator, Iterator
from datetime import datetime
from types import TracebackType
from typing import Self

from stablelog.client.base_group_reader import BaseGroupReader
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.core.arguments import BATCH_RECORDS, COLLECT_S, batch_limits
from stablelog.client.core.cluster import EARLIEST, LATEST
from stablelog.client.core.times import milliseconds
from stablelog.client.core.transaction_stream import ReadRecord


class GroupReader(BaseGroupReader[BlockingCluster], Iterator[ReadRecord]):
    """A member of a consumer group: an iterator of the records of its assigned partitions. Only one thread at a time
    may use the reader.

    Calls of the reader send the heartbeats of the member. If the program does not call the reader within the group's
    session timeout, the group assigns the partitions to other members.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_own:  # a forked process leaves the block: the reader is that of the parent process
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReadRecord:
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
            try:
                record = self._reading.take_ready_record(time.monotonic())
                if record is not None:
                    return record
                records = self._cluster.run(self._reading.read_records(1, self._wait_s, 0.0))
            except BaseException:
                self._reading.undo_last_read()
                raise
        if not records:
            raise StopIteration
        return records[0]

    def batches(
        self, max_records: int = BATCH_RECORDS, max_wait: float = COLLECT_S
    ) -> Generator[list[ReadRecord], None, None]:
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

    def _batches(self, max_records: int, max_wait: float) -> Generator[list[ReadRecord], None, None]:
        while True:
            self._check_process()
            with self._calls.lock_if_free():
                try:
                    records = self._cluster.run(
                        self._reading.read_records(max_records, self._wait_s, max_wait)
                    )
                except BaseException:
                    self._reading.undo_last_read()
                    raise
            if not records:
                return
            yield records

    def seek(self, topic: str, partition: int, offset: int) -> None:
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
        self._check_process()
        with self._calls.lock_if_free():
            self._cluster.run(self._seek(topic, partition, offset))

    def seek_to_time(
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
        self._check_process()
        with self._calls.lock_if_free():
            self._cluster.run(self._seek_to(milliseconds(time), topic, partition))

    def seek_to_beginning(self, topic: str | None = None, partition: int | None = None) -> None:
        """Continue at the first stored record, in each assigned partition.

        Args:
            topic: only this topic; None for all.
            partition: only this partition of the topic; None for all.

        Raises:
            The errors of `seek`.
        """
        self._check_process()
        with self._calls.lock_if_free():
            self._cluster.run(self._seek_to(EARLIEST, topic, partition))

    def seek_to_end(self, topic: str | None = None, partition: int | None = None) -> None:
        """Continue after the last record, in each assigned partition.

        Args:
            topic: only this topic; None for all.
            partition: only this partition of the topic; None for all.

        Raises:
            The errors of `seek`.
        """
        self._check_process()
        with self._calls.lock_if_free():
            self._cluster.run(self._seek_to(LATEST, topic, partition))

    def commit(self) -> None:
        """Commit the offsets of all records that the reader has handed out. Do not call this if a transaction commits
        the offsets (`offsets_of`).

        Raises:
            RefusedError: the group has given some partitions to another member, which reads their records again. The
                offsets of the other partitions are committed.
            UnavailableError: the coordinator does not respond within the deadline. The call may be repeated.
            UsageError: a transaction of this reader is open; or the reader is closed, or was made in another process.
        """
        self._check_process()
        with self._calls.lock_if_free():
            self._cluster.run(self._reading.commit())

    def close(self) -> None:
        """Close the reader: it leaves the group, which assigns its partitions to other members at once. No offset is
        committed.
        """
        self._check_process()
        lock = self._calls.lock_after_call()
        self._reading.is_closing = True  # a call of another thread ends
        with lock:
            if self._reading.is_closed:
                return
            try:
                self._cluster.run(self._reading.close())
            finally:
                self._give_back(self._cluster)
