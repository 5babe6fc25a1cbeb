"""Whole transactions of commit-ordered topics: of each partition, or over all partitions from one cut to the next.

Which records belong together is asked of the broker (`client.commits`); the records come by ordinary fetches. One
transaction of each partition is held in memory, whole, and what a fetch brought of the next ones.

Nobody sleeps here: where nothing is to be read yet comes a `Pause`, and the two faces, `client.native` and
`client.aio`, wait in their own ways.
"""

import itertools
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from stablelog.batch.header import headers_in
from stablelog.batch.records import Header, Record, decode_records
from stablelog.client.cluster import Cluster, Target
from stablelog.client.commits import Commit, describe_commits
from stablelog.client.cuts import Cut, describe_cut
from stablelog.errors import OffsetOutOfRange, Unavailable

LISTED_MAX: Final = 200  # transactions that are asked for at once
FETCH_SIZE_MAX: Final = 1 << 20
PAUSE_FIRST_S, PAUSE_MAX_S = 0.002, 0.2


class ReadRecord(NamedTuple):
    """A record, with its position in commit order."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A transaction, whole: of one partition, or of all that are read.

    Attributes:
        commit_sequence: the number of its commit in the transaction group.
        time_ms: of its commit, by the broker's clock.
        records: by topic and partition, and in each in the order in which they were written.
    """

    commit_sequence: int
    time_ms: int
    records: tuple[ReadRecord, ...]


class Pause(NamedTuple):
    """Nothing is there yet: go on after so many seconds."""

    seconds: float


class _Stream:
    """The transactions of one partition that were committed after some commit."""

    def __init__(self, cluster: Cluster, target: Target, after: int) -> None:
        self._cluster = cluster
        self._target = target
        self._after = after
        self._topic_id: uuid.UUID | None = None  # None if nothing was asked for yet
        self._position = -1  # what ends before it has been listed; -1 if nothing was asked for yet
        self._listed: deque[Commit] = deque()
        self._list_is_full = False  # the last list: more transactions may stand behind it
        self._known = -1  # a commit sequence up to which all is listed
        self._fetched: deque[Record] = deque()
        self._fetched_end = 0

    def peek(self, up_to: int | None = None) -> Commit | None:
        """The next transaction; None if there is none yet.

        Args:
            up_to: only one with this commit sequence or a lesser one, all of which can be read; None for any.

        Raises:
            OffsetOutOfRange: transactions may have been removed that were not read, or the topic is another one by now.
        """
        if not self._listed and (up_to is None or self._known < up_to):
            self._list()
            if not self._list_is_full and up_to is not None:
                self._known = up_to
        if not self._listed or (up_to is not None and self._listed[0].commit_sequence > up_to):
            return None
        return self._listed[0]

    def _list(self) -> None:
        """List the transactions behind the ones that have been listed. Raises as `peek`."""
        found = describe_commits(
            self._cluster,
            *self._target,
            offset=max(0, self._position),
            commit_sequence=self._after + 1,
            count_max=LISTED_MAX,
        )
        if self._topic_id not in (None, found.topic_id):
            raise OffsetOutOfRange(
                f"{self._target[0]} was deleted and created again, and {self._target[0]}-{self._target[1]} of the one "
                f"before was read up to {self._position}"
            )
        self._topic_id = found.topic_id
        if 0 <= self._position < found.start_offset:
            raise OffsetOutOfRange(
                f"{self._target[0]}-{self._target[1]} begins at {found.start_offset}, and was read up to "
                f"{self._position}: what stood between was removed"
            )
        self._listed.extend(found.commits)
        self._list_is_full = len(found.commits) == LISTED_MAX
        self._position = found.commits[-1].end_offset if self._list_is_full else found.end_offset

    def take(self) -> list[ReadRecord]:
        """The records of the next transaction, which `peek` has found.

        The children of a joint commit have one commit sequence and are one transaction. They stand one after the other;
        a list may end between two of them.

        Raises:
            OffsetOutOfRange: as in `peek`.
        """
        sequence = self._listed[0].commit_sequence
        records: list[ReadRecord] = []
        while self._listed and self._listed[0].commit_sequence == sequence:
            commit = self._listed[0]
            records += (
                ReadRecord(*self._target, one.offset, one.timestamp_ms, one.key, one.value, one.headers)
                for one in self._read(commit.start_offset, commit.end_offset)
            )
            self._listed.popleft()
            if not self._listed and self._list_is_full:
                self._list()
        self._after = sequence
        return records

    def _read(self, start: int, end: int) -> Iterator[Record]:
        """The records at [start, end)."""
        while self._fetched and self._fetched[0].offset < start:
            self._fetched.popleft()
        self._fetched_end = max(self._fetched_end, start)
        while self._fetched_end < end:
            self._fetch(end)
        while self._fetched and self._fetched[0].offset < end:
            yield self._fetched.popleft()

    def _fetch(self, end: int) -> None:
        """Fetch what comes next of a transaction that ends there.

        Raises:
            Unavailable: nothing comes, though a transaction that is listed can be read.
        """
        before = self._fetched_end
        fetched = self._cluster.fetch(*self._target, before, FETCH_SIZE_MAX)
        for position, header in headers_in(fetched.records):
            if header.next_offset > self._fetched_end:
                if not header.is_control:
                    self._fetched.extend(
                        record
                        for record in decode_records(fetched.records, position)
                        if record.offset >= self._fetched_end
                    )
                self._fetched_end = header.next_offset
        if self._fetched_end == before:
            raise Unavailable(
                f"{self._target[0]}-{self._target[1]}: the broker hands out nothing at offset {before}, where a committed "
                f"transaction stands that ends at {end}"
            )


class _Patience:
    """How long to wait for what is to come."""

    def __init__(self, wait_s: float | None) -> None:
        self._wait_s = wait_s
        self.renew()

    def renew(self) -> None:
        """Something came."""
        self._pause_s = PAUSE_FIRST_S
        self._until = None if self._wait_s is None else time.monotonic() + self._wait_s

    def pause(self) -> Pause | None:
        """Nothing came: how long to wait for it; None if it was waited for long enough."""
        left = PAUSE_MAX_S if self._until is None else self._until - time.monotonic()
        if left <= 0:
            return None
        pause_s = min(self._pause_s, left)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return Pause(pause_s)


def read_partitions(
    cluster: Cluster, topics: Sequence[str], after: int, wait_s: float | None
) -> Iterator[CommittedTransaction | Pause]:
    """The transactions of each partition in the order of their commits; partitions take turns.

    Args:
        cluster: where.
        topics: commit-ordered ones, with the partitions that they have now.
        after: the commit sequence after which to begin.
        wait_s: how long to wait for another transaction; None for ever.

    Raises:
        Refused: a topic is not there, or not in commit order.
        OffsetOutOfRange: transactions were removed before they were read.
        Unavailable: no answer within the deadline.
    """
    found = cluster.metadata(topics)
    if after > 0:
        for topic in topics:  # each may be of another group
            _check_nothing_removed(describe_cut(cluster, (topic,)), after)
    streams = [
        _Stream(cluster, (topic, partition), after)
        for topic in topics
        for partition in found[topic].partitions
    ]
    patience = _Patience(wait_s)
    while True:
        is_idle = True
        for stream in streams:
            commit = stream.peek()
            if commit is not None:
                is_idle = False
                records = tuple(stream.take())
                yield CommittedTransaction(commit.commit_sequence, commit.time_ms, records)
                patience.renew()
        if is_idle:
            pause = patience.pause()
            if pause is None:
                return
            yield pause


def _check_nothing_removed(cut: Cut, after: int) -> None:
    """Before anything is read after a commit: is all of it still there?

    Raises:
        OffsetOutOfRange: something may have been removed. Where whole segments were, no more may be known than that it
            was before the first transaction that is left.
    """
    whole_after = min(cut.whole_after(), cut.commit_sequence)
    if whole_after > after:
        raise OffsetOutOfRange(
            f"of transactions after commit sequence {after} something may have been removed: behind {whole_after} all "
            "are whole"
        )


def read_cuts(
    cluster: Cluster, topics: Sequence[str], after: int, wait_s: float | None, group: str | None
) -> Iterator[CommittedTransaction | Pause]:
    """The transactions over all partitions, whole, in the order of their commits.

    Args:
        cluster: where.
        topics: commit-ordered ones of the group; partitions that they get meanwhile are read, too.
        after: as in `read_partitions`.
        wait_s: as in `read_partitions`.
        group: the transaction group; None for the one that the topics belong to.

    Raises:
        Refused: as in `read_partitions`.
        OffsetOutOfRange: as in `read_partitions`.
        Unavailable: as in `read_partitions`.
    """
    streams: dict[Target, _Stream] = {}
    patience = _Patience(wait_s)
    while True:
        cut = describe_cut(cluster, topics, group=group)
        if not streams:
            if after == 0:
                after = cut.whole_after()  # of those before it, one partition or another has lost its part
            _check_nothing_removed(cut, after)
        elif max(cut.torn.values(), default=-1) > after:
            raise OffsetOutOfRange(
                f"of transactions up to commit sequence {max(cut.torn.values())} something was removed, and they were read "
                f"up to {after}"
            )
        added = cut.offsets.keys() - streams.keys()
        if added:
            cluster.forget_metadata()  # it may be of before they were made
            streams |= {target: _Stream(cluster, target, after) for target in added}
        if cut.commit_sequence > after:
            for transaction in _between(streams, cut.commit_sequence):
                yield transaction
                patience.renew()
            after = cut.commit_sequence
        else:
            pause = patience.pause()
            if pause is None:
                return
            yield pause


def _between(streams: dict[Target, _Stream], commit_sequence: int) -> Iterator[CommittedTransaction]:
    """What is left of the streams up to a cut, merged. In each partition commits stand in the order of their numbers."""
    while True:
        nexts = [
            (commit, stream)
            for stream in (streams[target] for target in sorted(streams))
            if (commit := stream.peek(commit_sequence)) is not None
        ]
        if not nexts:
            return
        least = min(commit.commit_sequence for commit, _ in nexts)
        parts = [(commit, stream) for commit, stream in nexts if commit.commit_sequence == least]
        records = itertools.chain.from_iterable(stream.take() for _, stream in parts)
        yield CommittedTransaction(least, max(commit.time_ms for commit, _ in parts), tuple(records))
