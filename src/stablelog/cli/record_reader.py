"""Reader of `stablelog consume`: prints the records that a consumer gets, and commits the offsets of its group.

An offset is committed only after the records before it were written to standard output, so an interrupted command loses
no record. The next member of the group may read the last records again.
"""

import contextlib
import sys
import time
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from stablelog.cli.disk_watch import fail_if_full
from stablelog.cli.librdkafka import TIMEOUT_S, ask
from stablelog.cli.output import fail, print_bytes
from stablelog.cli.partition_watch import PartitionWatch
from stablelog.cli.record_format import Render

POLL_S = 0.5
# A reader without --follow fails when its remaining partitions could not be read for this time.
UNREADABLE_S = 30.0
# A group's offsets are committed after this number of records, or this time.
COMMIT_COUNT = 1000
COMMIT_S = 1.0
COMMIT_LATER: Final = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR)


class Reader:
    """Prints the records that a consumer gets.

    Args:
        consumer: the consumer of librdkafka, with assigned partitions or as a member of the group.
        group: the consumer group; None if there is none.
        watch: reports on stderr which partitions cannot be read. The reader reports its progress to the watch.
        render: returns the bytes to print for a record.
        follow: whether to wait for new records at the end.

    Attributes:
        is_stopped: set it to stop the reader after the record that it prints.
    """

    def __init__(
        self, consumer: Consumer, group: str | None, watch: PartitionWatch, render: Render, *, follow: bool
    ) -> None:
        self._consumer = consumer
        self._group = group
        self._watch = watch
        self._render = render
        self._follow = follow
        self._ended: set[int] = set()  # the partitions that the reader has read to their end
        self._count = 0
        # The offset to commit for each assigned partition of which a record was printed.
        self._offsets: dict[int, int] = {}
        self._uncommitted_count = 0  # how many changes of `_offsets` no commit has
        self._committed_s = time.monotonic()
        self.is_stopped = False

    def print_records(self, partition_count: int, count_max: int | None) -> None:
        """Print records until the end of the topic, until `count_max` are printed or until the reader is stopped, and
        commit the group's offsets.

        Raises:
            UnavailableError: a partition cannot be read to its end, or the broker does not respond.
        """
        heard_s = time.monotonic()
        while (
            not self.is_stopped
            and self._count != count_max
            and (self._follow or len(self._ended) < partition_count)
        ):
            message = self._consumer.poll(POLL_S)
            if message is not None:
                heard_s = time.monotonic()
                self._take(message)
                continue
            sys.stdout.flush()
            self._commit_sometimes()
            assigned = self._assigned() if self._group is not None else set()
            if self._follow:
                continue
            if assigned and self._ended >= assigned:
                break  # the assigned partitions are read; other members of the group read the other partitions
            if (why := self._watch.given_up(UNREADABLE_S)) is not None:
                self._commit()
                fail(
                    f"{self._watch.topic} cannot be read to its end: {why}. With --follow, consume waits until it can"
                )
            if time.monotonic() > heard_s + TIMEOUT_S:
                what = f"reading {self._watch.topic}"
                ask(self._watch.bootstrap, lambda: self._consumer.list_topics(timeout=TIMEOUT_S), what)
                heard_s = time.monotonic()
        self._commit()

    def give_up(self, partitions: Iterable[int], *, is_lost: bool = False) -> None:
        """Commit the offsets of partitions that the group assigns to another member, and read them no further. If the
        partitions are lost, another member has them already, and nothing is committed.
        """
        left = set(partitions)
        self._ended -= left
        if not is_lost:
            # If the commit fails, the next member reads the last records again.
            with contextlib.suppress(KafkaException):
                self._commit_now(left, asynchronous=False)
        for index in left:
            self._offsets.pop(index, None)

    def _take(self, message: Any) -> None:
        """Print the record in a message. If the message reports the end of a partition instead, note that the partition
        is read to its end.

        Raises:
            UnavailableError: the consumer reports an error.
        """
        partition, error = message.partition(), message.error()
        if error is None:
            self._ended.discard(partition)
            self._watch.heard(partition, message.offset() + 1)
            print_bytes(self._render(message))
            self._count += 1
            self._offsets[partition] = message.offset() + 1
            self._uncommitted_count += 1
            self._commit_sometimes()
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name in the library
            self._ended.add(partition)
            self._watch.ended(partition)
            if self._offsets.get(partition, message.offset()) < message.offset():
                # Commit the end, so that no lag is left if the partition ends with the marker of a transaction.
                self._offsets[partition] = message.offset()
                self._uncommitted_count += 1
        else:
            where = f"{self._watch.topic}-{partition}" if partition >= 0 else self._watch.topic
            fail(f"reading {where} from {self._watch.bootstrap}: {error.str()}")

    def _assigned(self) -> set[int]:
        """Return the partitions that are assigned to this group member. Report a changed assignment to the watch."""
        assignment = self._consumer.assignment()
        assigned = {at.partition for at in assignment}
        if assigned != self._watch.partitions:
            committed: list[TopicPartition] = []
            with contextlib.suppress(KafkaException):
                committed = self._consumer.committed(assignment, timeout=TIMEOUT_S) if assignment else []
            self._watch.assigned(assigned, {at.partition: max(at.offset, -1) for at in committed})
        return assigned

    def _commit_now(self, partitions: Iterable[int], *, asynchronous: bool) -> None:
        """Write the printed records out, and commit the offsets of these partitions.

        Raises:
            KafkaException: a synchronous commit has failed.
        """
        sys.stdout.flush()
        offsets = [
            TopicPartition(self._watch.topic, index, self._offsets[index])
            for index in partitions
            if index in self._offsets
        ]
        if self._group is not None and offsets:
            self._consumer.commit(offsets=offsets, asynchronous=asynchronous)

    def _commit_sometimes(self) -> None:
        """Commit if COMMIT_COUNT records were printed since the last commit, or one record and COMMIT_S has passed. Do
        not wait for the response.
        """
        now_s = time.monotonic()
        if self._uncommitted_count >= COMMIT_COUNT or (
            self._uncommitted_count and now_s >= self._committed_s + COMMIT_S
        ):
            self._committed_s, self._uncommitted_count = now_s, 0
            self._commit_now(self._offsets, asynchronous=True)

    def _commit(self) -> None:
        """Write the printed records out and commit the group's offsets. Retry for TIMEOUT_S on an error that a retry
        can resolve.

        Raises:
            UnavailableError: the offsets were not committed; the message says why.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._commit_now(self._offsets, asynchronous=False)
                return
            except KafkaException as error:
                reason = error.args[0]
            if reason.code() not in COMMIT_LATER or time.monotonic() >= deadline_s:
                what = f"committing the offsets of group {self._group}, which reads the last records again"
                fail_if_full(self._watch.bootstrap, what)
                fail(f"{what}: {reason.str()}")
            time.sleep(POLL_S)
