"""Reports for which partitions `stablelog consume` waits, and why.

If a partition has no leader, or the broker responds to a fetch with an error, the reader retries silently. A thread
finds out the reason and reports it on stderr.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.cli import disk_watch
from stablelog.cli.leaders import OFFLINE, without_leader
from stablelog.cli.login import cluster_arguments
from stablelog.client.blocking.cluster import EARLIEST, BlockingCluster
from stablelog.errors import OffsetOutOfRangeError, RefusedError, StablelogError, UnavailableError
from stablelog.types import TopicPartition

DAMAGED: Final = "damaged"
FETCHES_MAX: Final = 20  # maximum of fetches in one check of a partition for damage
FETCH_SIZE: Final = 1 << 20


def leaderless(cluster: BlockingCluster, topic: str) -> dict[TopicPartition, str]:
    """Request the partitions of a topic from the broker. Return those that have no leader, each with the reason.

    Raises:
        UnavailableError: the broker does not respond.
    """
    return without_leader(cluster.metadata(), [topic])


def read_fault(cluster: BlockingCluster, target: TopicPartition, position: int, isolation: str) -> str | None:
    """Try to read a partition from an offset on. Return the fault because of which that is impossible, in words; None
    if it is possible.

    Args:
        cluster: the brokers. Its deadline must be 0, so that each request is sent once and not retried.
        target: topic and partition.
        position: the next offset to read; negative for the first one.
        isolation: read_committed or read_uncommitted.
    """
    try:
        if position < 0:
            position = cluster.list_offsets({target: EARLIEST}, isolation)[target].offset
        for _ in range(FETCHES_MAX):
            records = cluster.fetch(*target, position, FETCH_SIZE, isolation, wait_ms=0).records
            ends = [header.next_offset for _, header in headers_in(records)]
            if not ends or ends[-1] <= position:
                return None
            position = ends[-1]
    except OffsetOutOfRangeError:
        return None  # the offset is out of range: the reader goes on at the start of the log
    except (RefusedError, UnavailableError) as error:
        reason = error.__cause__ if isinstance(error.__cause__, RefusedError) else error
        if not isinstance(reason, RefusedError):
            return None  # the broker does not respond; the caller has its own report of that
        if reason.code is ErrorCode.kafka_storage_error:
            return f"{DAMAGED} at offset {position} or after it: the broker's log names the file"
        return f"not readable at offset {position} now: {reason.code_name}"
    return None


class PartitionWatch(disk_watch.WaitReporter):
    """Reports on stderr for which partitions of a topic a reader waits, and why.

    Args:
        bootstrap: the broker's address.
        topic: the topic that is read.
        partitions: the partitions of the reader; `set_partitions` replaces them.
        places: the offset at which the reader begins in each partition. A negative number stands for the first offset;
            a partition whose offset is unknown is left out.
        isolation: read_committed or read_uncommitted.

    Attributes:
        bootstrap: the broker's address.
        topic: the topic that is read.
        partitions: the partitions assigned to the reader.
        is_answered: whether the broker has responded to the last request about the partitions.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: Iterable[int],
        places: Mapping[int, int],
        isolation: str,
    ) -> None:
        super().__init__(self.state, lambda: True, f"{topic} can be read")
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = frozenset(partitions)
        self._positions = dict(places)
        self._isolation = isolation
        self._heard_s: dict[int, float] = {}
        self._at_end: frozenset[int] = frozenset()
        # By partition, the time at which it was found offline or damaged.
        self._since_s: dict[int, float] = {}
        self._faults: dict[int, str] = {}
        self._asked_s = 0.0
        self.is_answered = False

    def set_partitions(self, partitions: Iterable[int], places: Mapping[int, int]) -> None:
        """Set the partitions of the reader, and in `places` the offset at which it begins in each."""
        self.partitions = frozenset(partitions)
        self._positions = {**places, **self._positions}

    def mark_received(self, partition: int, next_offset: int) -> None:
        """Note that the reader has received a record of a partition, so that the partition counts as readable.
        `next_offset` is the offset after the record.
        """
        self._positions[partition] = next_offset
        self._heard_s[partition] = time.monotonic()
        self._at_end -= {partition}

    def mark_at_end(self, partition: int) -> None:
        """Note that the reader has reached the end of a partition, so that it no longer waits for this partition."""
        self._at_end |= {partition}

    def reason_to_end(self, wait_s: float) -> str | None:
        """Return the reason to end the command: why the reader can probably not reach the end of the partitions that
        are left. None if there is no such reason.

        The result is not None only if each of these partitions has been offline or damaged for `wait_s` seconds. If one
        of them can be read, or the broker is opening or checking it, the result is None.
        """
        left = self.partitions - self._at_end
        since_s, faults, now_s = self._since_s, self._faults, time.monotonic()
        if left and all(index in since_s and now_s - since_s[index] >= wait_s for index in left):
            return self._describe_faults({index: why for index, why in faults.items() if index in left})
        return None

    def state(self) -> str | None:
        """Find out from the broker which partitions of the reader cannot be read now. Return a text with them and the
        reasons; None if all can be read.
        """
        if time.monotonic() - self._asked_s < disk_watch.SILENCE_S:
            return self.reported
        faults = self._ask_broker()
        self._asked_s = now_s = time.monotonic()
        self._faults = faults
        self._since_s = {
            index: self._since_s.get(index, now_s)
            for index, why in faults.items()
            if why == OFFLINE or why.startswith(DAMAGED)
        }
        return self._describe_faults(faults) if faults else None

    def _ask_broker(self) -> dict[int, str]:
        faults: dict[int, str] = {}
        try:
            with BlockingCluster(self.bootstrap, deadline_s=0, **cluster_arguments()) as cluster:
                offline = leaderless(cluster, self.topic)
                self.is_answered = True
                for index in sorted(self.partitions):
                    fault = offline.get((self.topic, index))
                    if fault is None and self._is_due(index):
                        target = (self.topic, index)
                        fault = read_fault(cluster, target, self._positions[index], self._isolation)
                    if fault is not None:
                        faults[index] = fault
        except StablelogError:
            self.is_answered = False
            return {}  # the broker does not respond; the reader has its own report of that
        return faults

    def _is_due(self, index: int) -> bool:
        """Return whether a check is due that a partition can be read. It is due if the reader has not reached the end
        of the partition, and has received no record of it for some time.
        """
        heard_s = self._heard_s.get(index, 0.0)
        return (
            index in self._positions
            and index not in self._at_end
            and time.monotonic() - heard_s >= disk_watch.SILENCE_S
        )

    def _describe_faults(self, faults: Mapping[int, str]) -> str:
        return "; ".join(f"{self.topic}-{index} is {why}" for index, why in sorted(faults.items()))
