"""The rules of a reader of whole transactions. It reads commit-ordered topics: either each partition separately, or all
partitions together, from *cut* to cut. A cut is a position between two commits in all partitions: every transaction is
whole on one side of it.

The generator that `read_steps` returns emits a `ReaderItem` for each transaction. The code that runs it returns the
transaction to the program, and then calls `TransactionReader.deliver_item`, which moves the reader's position. So the
position never passes a transaction that the program has not got. The generator never ends by itself. After an error or
a seek, a new generator continues at the position.
"""

import uuid
from dataclasses import dataclass, replace
from typing import NamedTuple

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.commits import Commit
from stablelog.client.core.cuts import describe_cut
from stablelog.client.core.group_names import check_group
from stablelog.client.core.long_poll import WAIT_MAX_S
from stablelog.client.core.pauses import PausedPartitions
from stablelog.client.core.read_position import UNKNOWN, Mark, ReadPosition, check_fits
from stablelog.client.core.reader_start import After, naming_missing, start_of_cuts, start_of_partitions
from stablelog.client.core.seeking import check_offsets
from stablelog.client.core.steps import NOW, Steps
from stablelog.client.core.transaction_stream import (
    CommittedTransaction,
    ReaderWait,
    ReadRecord,
    TransactionStream,
    poll_streams,
)
from stablelog.client.topics import TopicDescription
from stablelog.errors import DataLossError, OffsetOutOfRangeError, RefusedError, UsageError
from stablelog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class ReaderSelection:
    """What a reader reads: the checked arguments of `Client.read`.

    Raises:
        UsageError: no topic, an invalid group name, a negative number in `after`, or a position of another reader.
    """

    topics: tuple[str, ...]
    is_cut: bool
    after: After
    wait_s: float | None
    group: str | None
    skips_unreadable: bool = False

    def __post_init__(self) -> None:
        if not self.topics:
            raise UsageError("there is no topic to read: name one or several")
        check_group(self.group)
        if isinstance(self.after, ReadPosition):
            check_fits(self.after, self.topics, self.group, is_cut=self.is_cut)
        elif isinstance(self.after, int) and self.after < 0:
            raise UsageError(
                f"{self.after} is no commit sequence (the number of a commit): the first one is 1, and 0 stands for the beginning"
            )


class ReaderItem(NamedTuple):
    """An item that `TransactionReader.read_steps` emits: a transaction, and the position of the reader after it.

    Attributes:
        transaction: a whole transaction; None if there was none within the reader's time limit.
        marks: for each partition that the transaction changes, the mark (offset and commit sequence) at which the
            reader continues there after the program has got the transaction.
        commit_sequence: if the reader reads all partitions together, the number of the commit up to which the program
            has then got all transactions.
    """

    transaction: CommittedTransaction | None
    marks: dict[TopicPartition, Mark]
    commit_sequence: int


class TransactionReader:
    """A reader of whole transactions: what it reads, and its position.

    Args:
        selection: the arguments of `Client.read`: which topics to read, and how.

    Attributes:
        wait_s: for how many seconds to wait for the next transaction; None for no limit.
    """

    def __init__(self, selection: ReaderSelection) -> None:
        self.wait_s = selection.wait_s
        self._selection = selection
        self._start: After = selection.after
        self._position: ReadPosition | None = None  # None if no steps have begun at `_start` yet
        self._marks: dict[TopicPartition, Mark] = {}  # of the position
        self._commit_sequence = 0  # with cuts, that of the position
        self._sought: dict[TopicPartition, int] = {}  # offsets of seeks that are not checked yet
        self._paused = PausedPartitions()

    @property
    def commit_sequence(self) -> int:
        """The commit sequence (number of a commit) up to which the program has got all transactions; 0 if the
        partitions are read separately, because then there is no common one.
        """
        return self._commit_sequence

    @property
    def position(self) -> ReadPosition:
        """The position after the last transaction that the program has got.

        Raises:
            UsageError: the reader has no position yet, because it begins with new commits and has sent no request.
        """
        place = self._unsought_position()
        if not self._sought:
            return place
        sought = {target: Mark(offset, 0) for target, offset in self._sought.items()}
        topics = place.topics or dict.fromkeys(self._selection.topics)
        return replace(place, topics=topics, marks={**place.marks, **sought})

    def _unsought_position(self) -> ReadPosition:
        """Return the position without the seeks of the program whose offsets are not checked yet. Raises the errors of
        `position`.
        """
        known, start = self._position, self._start
        if known is not None:
            return replace(known, commit_sequence=self._commit_sequence, marks=dict(self._marks))
        if isinstance(start, ReadPosition):
            return start
        if not isinstance(start, int) or (start > 0 and not self._selection.is_cut):
            raise UsageError(
                "the reader has no position yet: it has one when the program has asked for a transaction"
            )
        return ReadPosition(None, self._selection.is_cut, None, start, {}, {})

    def seek(self, after: After) -> None:
        """Continue after a position or a commit sequence (the number of a commit), at a time, or with new commits
        (None). The present generator of `read_steps` does not notice this: the caller must drop it and call
        `read_steps` again.

        Raises:
            UsageError: the position belongs to a reader with other topics or another `cut`.
        """
        self._start = replace(self._selection, after=after).after
        self._position = None
        self._sought.clear()

    def seek_to_offset(self, topic: str, partition: int, offset: int) -> None:
        """Continue at an offset of one partition. The present generator of `read_steps` does not notice this: the
        caller must drop it and call `read_steps` again.

        Raises:
            UsageError: the reader reads all partitions together (`cut=True`), does not read this topic, or has no
                position yet.
        """
        self._check_separate("an offset of one partition does not say where to begin in the others")
        if topic not in self._selection.topics:
            raise UsageError(
                f"the reader reads {', '.join(self._selection.topics)}, and not {topic}: name one of its topics"
            )
        if offset < 0 or partition < 0:
            raise UsageError(
                f"{topic}-{partition} has no offset {offset}: a partition and an offset are numbers from 0 on"
            )
        self._start, self._position = self._unsought_position(), None
        self._sought[topic, partition] = offset

    def pause(self, topic: str, partition: int | None) -> None:
        """Pause a partition, or a whole topic if `partition` is None: do not read it until `resume` is called. The
        present generator of `read_steps` does not notice this: the caller must drop it and call `read_steps` again.

        Raises:
            UsageError: the reader reads all partitions together (`cut=True`), so that none of them can be left out.
        """
        self._check_separate("without one of its partitions, a transaction is not whole")
        self._paused.pause(topic, partition)

    def resume(self, topic: str, partition: int | None) -> None:
        """Resume a paused partition, or a paused topic if `partition` is None: read it again. The present generator of
        `read_steps` does not notice this: the caller must drop it and call `read_steps` again.

        Raises:
            UsageError: the reader reads all partitions together (`cut=True`), so that none can be paused; or the whole
                topic is paused, so that one partition of it cannot be resumed.
        """
        self._check_separate("without one of its partitions, a transaction is not whole")
        self._paused.resume(topic, partition)

    def _check_separate(self, why: str) -> None:
        if self._selection.is_cut:
            raise UsageError(
                f"this reader reads all partitions together, up to the same commit: {why}. Make a reader with cut=False"
            )

    def deliver_item(self, given: ReaderItem) -> None:
        """Record that the program has got the transaction of an item of `read_steps`: move the reader's position behind
        it.
        """
        self._marks |= given.marks
        self._commit_sequence = given.commit_sequence

    def read_steps(self, cluster: Cluster) -> Steps[None]:
        """Return the steps (a generator of I/O operations) that emit the transactions after the position, each as a
        `ReaderItem`.

        Args:
            cluster: the brokers.

        Raises:
            UsageError: the position is of another cluster; or `after` is a number, and the reader reads several
                partitions separately.
            RefusedError: a topic does not exist, is not commit-ordered, or is in another transaction group (topics
                whose commits have one order) than the reader's.
            DataLossError: transactions were removed before they were read.
            DamageError: a batch was changed since it was written, or its records cannot be decoded.
            UnavailableError: no response within the deadline.
        """
        if self._position is not None:
            self._start = self._unsought_position()
        return self._cut_steps(cluster) if self._selection.is_cut else self._partition_steps(cluster)

    def _begin_streams(
        self,
        cluster: Cluster,
        topics: dict[str, TopicDescription],
        marks: dict[TopicPartition, Mark],
        *,
        group: str | None = None,
        commit_sequence: int = 0,
    ) -> dict[TopicPartition, TransactionStream]:
        """Make a stream for each partition, an object that reads its transactions from a mark on, and set the reader's
        position to these marks.

        Args:
            cluster: the brokers.
            topics: the topics by name.
            marks: where to begin in each partition: an offset, a commit sequence and a leader epoch.
            group: the transaction group of the topics, whose commits have one order, for the position; None if the
                partitions are read separately.
            commit_sequence: the number of the commit up to which all partitions were read, for the position; 0 if they
                are read separately.

        Returns:
            The stream of each partition.
        """
        ids = {name: topic.topic_id for name, topic in topics.items()}
        self._marks, self._commit_sequence = dict(marks), commit_sequence
        self._position = ReadPosition(
            cluster.cluster_id, self._selection.is_cut, group, commit_sequence, ids, self._marks
        )
        return {
            target: self._make_stream(cluster, target, mark, ids[target[0]]) for target, mark in marks.items()
        }

    def _make_stream(
        self, cluster: Cluster, target: TopicPartition, mark: Mark, topic_id: uuid.UUID | None
    ) -> TransactionStream:
        skips = self._selection.skips_unreadable
        return TransactionStream(cluster, target, mark, topic_id, skips_unreadable=skips)

    # --- each partition by itself ---

    def _partition_steps(self, cluster: Cluster) -> Steps[None]:
        """Emit the transactions of each partition in the order of their commits, taking the partitions in turn."""
        patience = ReaderWait(cluster, lambda: self.wait_s)
        names = self._selection.topics
        beginning = start_of_partitions(
            cluster, names, self._selection.group, self._start, self._sought.keys()
        )
        topics, marks = yield from naming_missing(cluster, names, beginning)
        if self._sought:
            yield from self._check_seek_offsets(cluster)
            marks |= {
                target: Mark(offset, 0, topics[target[0]].leader_epoch(target[1]))
                for target, offset in self._sought.items()
            }
        streams = self._begin_streams(cluster, topics, marks)
        self._sought.clear()
        paused = self._paused.select_paused(streams)
        is_checked = False  # each partition was asked once more after the last wait had ended
        looked_at = yield NOW  # when the partitions were last asked for
        while True:
            now = yield NOW
            if now >= looked_at + WAIT_MAX_S:
                looked_at = now
                topics = yield from cluster.metadata(self._selection.topics)
                mark = Mark(UNKNOWN, self._start if isinstance(self._start, int) else 0)
                for name, topic in topics.items():
                    for target in [(name, partition) for partition in topic.partitions]:
                        if target not in streams:
                            streams[target] = self._make_stream(cluster, target, mark, topic.topic_id)
                paused = self._paused.select_paused(streams)
            active = {target: stream for target, stream in streams.items() if target not in paused}
            for stream in active.values():
                yield from stream.peek_transaction()
            marks = {target: stream.mark for target, stream in streams.items()}
            ready = {target: stream for target, stream in active.items() if stream.is_listed}
            while ready and all(stream.is_listed for stream in ready.values()):
                for target, stream in ready.items():
                    commit = yield from stream.peek_transaction()
                    assert commit is not None
                    records = tuple((yield from stream.take_transaction()))
                    whole = CommittedTransaction(
                        commit.commit_sequence, commit.time_ms, records, stream.unreadable_count
                    )
                    marks[target] = stream.mark
                    yield from patience.emit_item(ReaderItem(whole, marks, 0))
                    marks = {}
            ends = {target: stream.end for target, stream in active.items()}
            ended = {target: end for target, end in ends.items() if end is not None}
            if ready:
                is_checked = False
                if (
                    ended
                ):  # one request for all partitions that were read to their end, while others have more
                    yield from poll_streams(cluster, active, ended)
            elif not (yield from patience.wait_for_change(active, ended)):
                if is_checked:
                    yield from patience.emit_item(ReaderItem(None, marks, 0))
                # A topic that was created again, and has as many records as before, looks unchanged to a fetch.
                is_checked = not is_checked
                for stream in active.values():
                    stream.apply_fetched(None)

    def _check_seek_offsets(self, cluster: Cluster) -> Steps[None]:
        """Check that the offsets to which the program has moved partitions are in the logs. If one is not, forget this
        seek, and raise the error: the partition continues where it was before.
        """
        for target, offset in list(self._sought.items()):
            try:
                yield from check_offsets(cluster, {target: offset})
            except (OffsetOutOfRangeError, RefusedError):
                del self._sought[target]
                raise

    # --- all partitions together ---

    def _cut_steps(self, cluster: Cluster) -> Steps[None]:
        """Emit whole transactions, each with its records of all partitions, in the order of the commits. Read from cut
        to cut: a cut is a position between two commits in all partitions.
        """
        names = self._selection.topics
        patience = ReaderWait(cluster, lambda: self.wait_s)
        start = self._start
        beginning = start_of_cuts(cluster, names, self._selection.group, start)
        cut, topics, after, marks = yield from naming_missing(cluster, names, beginning)
        streams = self._begin_streams(cluster, topics, marks, group=cut.group, commit_sequence=after)
        if isinstance(start, ReadPosition) and start.commit_sequence:
            self._marks |= start.marks  # a later reader checks them
        while True:
            if max(cut.torn.values(), default=-1) > after:
                raise DataLossError(
                    f"records of transactions up to commit sequence {max(cut.torn.values())} were removed "
                    f"before the reader got them: the reader has got all transactions up to commit sequence {after}"
                )
            if cut.commit_sequence > after:
                while (found := (yield from _next_up_to(streams, cut.commit_sequence))) is not None:
                    yield from patience.emit_item(found)
                after = cut.commit_sequence
            elif not (yield from patience.wait_for_change(streams, cut.offsets)):
                yield from patience.emit_item(ReaderItem(None, {}, after))
            cut = yield from describe_cut(cluster, names, group=self._selection.group)
            added = cut.offsets.keys() - streams.keys()
            if added:
                topics = yield from cluster.metadata(names)  # the cached metadata may lack the new partitions
                streams |= {
                    target: self._make_stream(
                        cluster, target, Mark(UNKNOWN, after), topics[target[0]].topic_id
                    )
                    for target in added
                }


def _next_up_to(
    streams: dict[TopicPartition, TransactionStream], commit_sequence: int
) -> Steps[ReaderItem | None]:
    """Take the next transaction from the streams, each of which reads one partition: the one with the lowest commit
    sequence (number of a commit), if that is at most `commit_sequence`. Its records come from each stream that has this
    commit.

    Returns:
        An item with the transaction, and with the reader's marks after it (for each partition, the offset at which the
        reader continues); None if no stream has a transaction up to this commit sequence.
    """
    nexts: list[tuple[Commit, TopicPartition]] = []
    for target in sorted(streams):
        commit = yield from streams[target].peek_transaction(commit_sequence)
        if commit is not None:
            nexts.append((commit, target))
    if not nexts:
        return None
    least = min(commit.commit_sequence for commit, _ in nexts)
    parts = [(commit, target) for commit, target in nexts if commit.commit_sequence == least]
    records: list[ReadRecord] = []
    for _, target in parts:
        records += yield from streams[target].take_transaction()
    time_ms = max(commit.time_ms for commit, _ in parts)
    unreadable_count = sum(streams[target].unreadable_count for _, target in parts)
    whole = CommittedTransaction(least, time_ms, tuple(records), unreadable_count)
    return ReaderItem(whole, {target: streams[target].mark for _, target in parts}, least)
