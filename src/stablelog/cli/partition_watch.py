"""Report of the partitions that `stablelog consume` cannot read.

If a partition has no leader, or if the broker responds to a fetch with an error, the reader tries again. A thread finds
out why, so that the command can say what it waits for.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.cli import disk_watch
from stablelog.cli.leaders import OFFLINE, without_leader
from stablelog.cli.login import identity
from stablelog.client.blocking.cluster import EARLIEST, BlockingCluster
from stablelog.errors import OffsetOutOfRangeError, RefusedError, StablelogError, UnavailableError
from stablelog.types import TopicPartition

DAMAGED: Final = "damaged"
FETCHES_MAX: Final = 20  # maximum of fetches in one check of a partition for damage
FETCH_SIZE: Final = 1 << 20


def leaderless(cluster: BlockingCluster, topic: str) -> dict[TopicPartition, str]:
    """Ask which partitions of a topic have no leader. Return them with the reason.

    Raises:
        UnavailableError: the broker does not respond.
    """
    return without_leader(cluster.metadata(), [topic])


def read_fault(cluster: BlockingCluster, target: TopicPartition, position: int, isolation: str) -> str | None:
    """Return the reason why a reader cannot read the records from an offset on; None if it can.

    Args:
        cluster: the brokers, with a deadline of 0, so that each request is sent once and not retried.
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
    """Watch that reports on stderr for which partitions of a topic a reader waits, and for what reason.

    Args:
        bootstrap: the broker's address.
        topic: the topic that is read.
        partitions: the partitions assigned to the reader; the method `assigned` replaces them.
        places: the start offset by partition; negative for the first offset, absent if unknown.
        isolation: read_committed or read_uncommitted.

    Attributes:
        bootstrap: as given.
        topic: as given.
        partitions: the partitions assigned to the reader.
        is_answered: whether the broker has answered the last question.
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

    def assigned(self, partitions: Iterable[int], places: Mapping[int, int]) -> None:
        """Record that these partitions are assigned to the reader, and that it begins at these offsets."""
        self.partitions = frozenset(partitions)
        self._positions = {**places, **self._positions}

    def heard(self, partition: int, next_offset: int) -> None:
        """Record that the reader has received a record of a partition."""
        self._positions[partition] = next_offset
        self._heard_s[partition] = time.monotonic()
        self._at_end -= {partition}

    def ended(self, partition: int) -> None:
        """Record that the reader is at the end of a partition."""
        self._at_end |= {partition}

    def given_up(self, wait_s: float) -> str | None:
        """Return the reason why the reader cannot read the remaining partitions to their end, as text.

        Return None while one of these partitions can be read, or is only waiting for the broker to open it or to prove
        a segment. Return None, too, until each of these partitions has been offline or damaged for `wait_s` seconds.
        """
        left = self.partitions - self._at_end
        since_s, faults, now_s = self._since_s, self._faults, time.monotonic()
        if left and all(index in since_s and now_s - since_s[index] >= wait_s for index in left):
            return self._text({index: why for index, why in faults.items() if index in left})
        return None

    def state(self) -> str | None:
        """Ask the broker which partitions cannot be read now. Return them with the reasons, as text."""
        if time.monotonic() - self._asked_s < disk_watch.SILENCE_S:
            return self.told
        faults = self._ask()
        self._asked_s = now_s = time.monotonic()
        self._faults = faults
        self._since_s = {
            index: self._since_s.get(index, now_s)
            for index, why in faults.items()
            if why == OFFLINE or why.startswith(DAMAGED)
        }
        return self._text(faults) if faults else None

    def _ask(self) -> dict[int, str]:
        faults: dict[int, str] = {}
        try:
            with BlockingCluster(self.bootstrap, deadline_s=0, **identity()) as cluster:
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
        """Whether to check a partition: the reader is not at the partition's end, and has received none of its records
        for some time.
        """
        heard_s = self._heard_s.get(index, 0.0)
        return (
            index in self._positions
            and index not in self._at_end
            and time.monotonic() - heard_s >= disk_watch.SILENCE_S
        )

    def _text(self, faults: Mapping[int, str]) -> str:
        return "; ".join(f"{self.topic}-{index} is {why}" for index, why in sorted(faults.items()))
