"""A reader of a consumer group, for programs with threads. `Client.subscribe` makes it."""

import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Final, Self

from stablelog.client.cluster import Cluster
from stablelog.client.core.group_reading import GroupReading
from stablelog.client.core.reading import ReadRecord
from stablelog.client.processes import check_process, this_process

WHAT: Final = "this reader"
BATCH_RECORDS: Final = 500
COLLECT_S: Final = 0.1


class GroupReader(Iterator[ReadRecord]):
    """A member of a consumer group: an iterator of the records of the partitions that the group assigns to it. One thread
    at a time uses the reader.

    Calls of the reader send the heartbeats of the member. A reader that the program does not call within the group's
    session timeout loses its partitions to other members.

    Args:
        cluster: the brokers; the reader uses it alone.
        reading: decides what is read and handed out.
        wait_s: how long to wait for the next record before an iteration ends; None for no limit.
        give_back: called with the cluster at the end.

    Attributes:
        reading: as given.
    """

    def __init__(
        self,
        cluster: Cluster,
        reading: GroupReading,
        wait_s: float | None,
        give_back: Callable[[Cluster], None],
    ) -> None:
        self._process = this_process()
        self._cluster = cluster
        self.reading = reading
        self._wait_s = wait_s
        self._give_back = give_back

    def __repr__(self) -> str:
        return f"<GroupReader of group {self.reading.member.group_id!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if (
            self._process is this_process()
        ):  # a forked process leaves the block: the reader is that of the parent process
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReadRecord:
        """Return the next record. The iteration ends if there is none for `wait` seconds; it may be begun again.

        Raises:
            RefusedError: the broker refuses the member, or to read a partition.
            UnavailableError: the group's coordinator does not respond within the deadline. The call may be repeated.
            DataLossError: records were removed before they were read. The next call goes on at the first record left.
            DamageError: a batch is damaged; the message names it.
            UsageError: the reader is closed, or was made in another process.
        """
        check_process(self._process, WHAT)
        try:
            record = self.reading.take_ready(time.monotonic())
            if record is not None:
                return record
            records = self._cluster.run(self.reading.read(1, self._wait_s, 0.0))
        except BaseException:
            self.reading.hand_back()
            raise
        if not records:
            raise StopIteration
        return records[0]

    def batches(
        self, *, max_records: int = BATCH_RECORDS, max_wait: float = COLLECT_S
    ) -> Generator[list[ReadRecord], None, None]:
        """Yield lists of records. The iteration ends if there is no record for `wait` seconds; it may be begun again.

        Args:
            max_records: maximum of records in a list.
            max_wait: how many seconds the reader waits for more records after the first one.

        Raises:
            As `__next__`.
        """
        while True:
            check_process(self._process, WHAT)
            try:
                records = self._cluster.run(self.reading.read(max_records, self._wait_s, max_wait))
            except BaseException:
                self.reading.hand_back()
                raise
            if not records:
                return
            yield records

    def commit(self) -> None:
        """Commit the offsets of all records that the reader has handed out. With a transaction of `offsets_of`, the
        transaction does this.

        Raises:
            RefusedError: the group has given partitions to another member before, which reads their records again. The
                other offsets are committed.
            UnavailableError: the coordinator does not respond within the deadline. The call may be repeated.
            UsageError: a transaction of this reader is open; or the reader is closed, or was made in another process.
        """
        check_process(self._process, WHAT)
        self._cluster.run(self.reading.commit())

    def close(self) -> None:
        """Leave the group without a commit. The group assigns the partitions to other members at once."""
        check_process(self._process, WHAT)
        if self.reading.is_closed:
            return
        try:
            self._cluster.run(self.reading.close())
        finally:
            self._give_back(self._cluster)
