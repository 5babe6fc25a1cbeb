"""Cuts of a read: convert options into the offsets of all partitions at a cut. A cut is a position between two commits
in all partitions of a transaction group (topics whose commits have one order): every transaction is whole on one side
of it.

A reader that reads from one cut to another gets whole transactions over all topics. An option may name offsets that are
not a cut: in the middle of a transaction, or before a transaction in one partition and after it in another. Such a read
is refused. If retention has removed the beginning of the log, transactions may have lost records in some partitions.
The earliest cut at which a read may begin is therefore the first one after which no record has been removed.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.blocking.commits import Commit, Commits
from stablelog.client.blocking.cuts import Cut
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.errors import RefusedError, UnavailableError, UsageError
from stablelog.spark.offsets import Bound, StreamCut, StreamOffsets
from stablelog.spark.options import ReadOptions
from stablelog.spark.source import resolve
from stablelog.spark.source.commit_ordered_log import CommitOrderedLog, commit_ordered
from stablelog.spark.source.ranges import Range
from stablelog.spark.source.resolve import Log, partition_name, partition_names, ranges_between, report_loss
from stablelog.types import TopicPartition
from stablelog.wire.extension.commits import COUNT_MAX
from stablelog.wire.extension.cut import NOT_KNOWN, RESOLVED

log = logging.getLogger(__name__)
PAUSE_S: Final = 0.002
SETTLING_TRIES: Final = 5000  # Maximum number of pauses while waiting for markers of acknowledged commits.
TRIES: Final = 10  # maximum number of attempts to list the topics while topics are created or deleted
LISTED_MAX: Final = 32_000  # maximum of transactions to list at a time, over all partitions


class Cuts:
    """Finds the cuts of the topics of a read. A cut at the commit sequence R (the number of a commit) has one offset
    for each partition: before it, the partition has all its commits up to R, and no later one.

    Args:
        options: the options of the read.
        log_: the log, which lists the partitions.
        there: a function that returns the existing partitions; None to use `log_.partitions`. A stream passes its own
            function, because with some options it continues although partitions were deleted.
    """

    def __init__(
        self,
        options: ReadOptions,
        log_: Log,
        there: Callable[[], dict[TopicPartition, str]] | None = None,
    ) -> None:
        self._options = options
        self._log = log_
        self._there = log_.partitions if there is None else there
        self._ordered = commit_ordered(log_)
        self._partitions: dict[TopicPartition, str] = {}
        self._listings: dict[TopicPartition, _Listing] = {}
        # The commit sequence of the last cut for which `_wait_for_last_cut` has waited as long as it may; it does not wait again
        # while the last cut is this one.
        self._held_at = -1

    @property
    def may_lag(self) -> bool:
        """Whether the last cut (a position between two commits, in all partitions) may be before one that was read
        earlier. In an object store it may, because the store gets the records of the broker only later.
        """
        return self._ordered.may_lag

    # -- cuts --------------------------------------------------------------------------------------------------

    def last_cut(self, known: StreamOffsets | None = None) -> StreamOffsets:
        """Return the offsets of the last cut: the position in all partitions after the last commit. All commits that
        were acknowledged before this call are before it.

        Args:
            known: a cut that was returned a short time ago. If the topics of the read have no later commit, this cut is
                returned without further requests.
        """
        if known is None or not self._partitions:
            self._partitions = self._there()
        cut = self._wait_for_last_cut()
        if known is not None and self._chosen_offsets(cut) == known.next_offsets:
            return known
        return self._offsets_of_cut(cut)

    def _wait_for_last_cut(self) -> Cut:
        """Return the last cut: the position in all partitions after the last commit whose markers are all durable.
        First wait until the markers of all commits that were acknowledged before this call are durable, but only for a
        limited time.
        """
        cut = first = self._request_cut(RESOLVED)
        for _ in range(SETTLING_TRIES):
            if cut.commit_sequence >= first.last_commit_sequence or cut.commit_sequence == self._held_at:
                return cut
            time.sleep(PAUSE_S)
            cut = self._request_cut(RESOLVED)
        log.warning(
            "the read sees only the commits up to commit sequence %s, although those up to %s were acknowledged "
            "before: some of their markers are not durable yet. `stablelog cut` shows the markers that are missing",
            cut.commit_sequence,
            first.last_commit_sequence,
        )
        self._held_at = cut.commit_sequence
        return cut

    def cut_at(self, commit_sequence: int) -> StreamOffsets:
        """Return the cut at a commit sequence (the number of a commit): for each partition, the offset that divides the
        commits up to this one from the later ones. The log refuses this until the markers of all these commits are
        durable.
        """
        if not self._partitions:
            self._partitions = self._there()
        return self._offsets_of_cut(self._request_cut(commit_sequence))

    def wait_for_cut(self, commit_sequence: int) -> StreamOffsets | None:
        """Return the cut at this commit sequence: the position in all partitions after the commit with this number. A
        broker that was just restarted may not know yet that the markers of these commits are durable; this method waits
        until it does, for a limited time. Return None if the broker still does not know the commit.

        The broker knows the markers when it has opened all partitions that contain them.
        """
        try:
            return self.cut_at(commit_sequence)
        except UsageError:
            return None

    def _request_cut(self, commit_sequence: int, places: Iterable[TopicPartition] | None = None) -> Cut:
        topics = {topic for topic, _ in (self._partitions if places is None else places)}
        try:
            return self._ordered.cut(topics, commit_sequence)
        except RefusedError as refused:
            if isinstance(refused, UnknownTopicOrPartitionError) and places is None:
                # List the topics again. With failOnDataLoss=true, this raises an error for a missing topic.
                before, self._partitions = self._partitions, self._there()
                if self._partitions.keys() != before.keys():
                    return self._request_cut(commit_sequence)
            if refused.code is ErrorCode.invalid_request:
                raise UsageError(f"cut=true: {refused}") from refused
            raise

    def _offsets_of_cut(self, cut: Cut) -> StreamOffsets:
        """Return the offsets of a cut (a position between two commits) in the partitions of all topics that existed
        when the broker made the cut.

        The topics are listed again after the request for the cut, because transactions of the cut may have written to a
        topic that was created after the first listing.
        """
        for _ in range(TRIES):
            before, self._partitions = self._partitions, self._there()
            if before == self._partitions:
                break
            cut = self._request_cut(cut.commit_sequence)
        else:
            raise UnavailableError(
                "topics of the read are created and deleted so often that they cannot be listed: run the query again"
            )
        point = StreamCut(cut.commit_sequence, cut.group)
        return StreamOffsets(self._chosen_offsets(cut), resolve.topic_ids_of(self._partitions), point)

    def _chosen_offsets(self, cut: Cut) -> dict[TopicPartition, int]:
        return {place: cut.offsets[place] for place in self._partitions if place in cut.offsets}

    # -- bounds of options -------------------------------------------------------------------------------------

    def resolve_bound(self, bound: Bound, option: str, latest: StreamOffsets) -> StreamOffsets:
        """Return the cut (a position between two commits, in all partitions) at which a read begins or ends, according
        to an option.

        Args:
            bound: the beginning or the end of the read.
            option: the option's name, `startingOffsets` or `endingOffsets`.
            latest: the last cut.

        Raises:
            UsageError: the offsets of the option divide a transaction.
            UnavailableError: records at the cut have been removed from the log, or the broker does not know yet that
                all commits before the cut have their markers.
        """
        if bound.kind == "latest":
            return latest
        if bound.kind == "earliest":
            return self._earliest(latest)
        if bound.kind == "timestamp":
            return self._at_time(bound.timestamp_ms, option, latest)
        if bound.kind == "cut":
            if bound.commit_sequence > latest.stream_cut.commit_sequence:
                raise UsageError(
                    f"{option.replace('Offsets', 'Cut')}={bound.commit_sequence} is after the last commit "
                    f"that can be read, {latest.stream_cut.commit_sequence}: the markers of later commits "
                    "are not durable yet"
                )
            found = self.cut_at(bound.commit_sequence)
        else:
            earliest = self._log.earliest(list(latest.next_offsets))
            offsets = resolve.resolve_bound(
                self._options, self._log, bound, option, earliest, latest.next_offsets
            )
            found = self._check_is_cut(offsets, option, latest)
        if option == "startingOffsets":
            self.check_whole(found, found.next_offsets if bound.kind == "offsets" else ())
        return found

    def _first_commit(self, place: TopicPartition, offset: int) -> Commits:
        return self._ordered.commits(place, offset, 1)

    def _earliest(self, latest: StreamOffsets) -> StreamOffsets:
        """Return the earliest cut at which a read may begin: the first position between two commits after which no
        record has been removed.
        """
        commit_sequence, places = self._removed_sequence(latest)
        if not places:
            # Records outside transactions may have been removed from the beginning.
            return StreamOffsets(
                dict(self._log.earliest(list(latest.next_offsets))),
                latest.topic_ids,
                latest.stream_cut._replace(commit_sequence=0),
            )
        log.warning(
            "the beginning of %s was removed: whole transactions begin after commit sequence %s",
            partition_names(places),
            commit_sequence,
        )
        return self.cut_at(commit_sequence)

    @staticmethod
    def _limited_sequence(removed: int, last: int) -> int:
        return last if removed == NOT_KNOWN else min(removed, last)

    def _removed_sequence(self, latest: StreamOffsets) -> tuple[int, list[TopicPartition]]:
        """Return a pair: the number of the last commit that may have lost records by retention (its commit sequence; -1
        if none has), and the partitions that have lost records of commits up to it.
        """
        last = latest.stream_cut.commit_sequence
        removed = {
            place: self._limited_sequence(sequence, last)
            for place, sequence in self._request_cut(RESOLVED, latest.next_offsets).removed.items()
            if place in latest.next_offsets
        }
        return max(removed.values(), default=-1), [place for place in removed if removed[place] >= 0]

    def check_whole(self, after: StreamOffsets, known: Collection[TopicPartition] = ()) -> None:
        """Check that all transactions after a cut (a position between two commits) are whole: that none has lost
        records.

        Args:
            after: the cut, with its offset in each partition that is read from there on.
            known: the partitions that the stream has read up to the cut. In these, only transactions whose beginning
                was removed (torn transactions) are reported, because earlier records are not read again.

        Raises:
            DataLossError: records may have been removed, and failOnDataLoss is true.
        """
        cut = self._request_cut(RESOLVED, after.next_offsets)
        removed = {
            place: cut.torn[place]
            if place in known
            else self._limited_sequence(cut.removed[place], cut.commit_sequence)
            for place in after.next_offsets
            if place in cut.removed
        }
        torn = [place for place, sequence in removed.items() if sequence > after.stream_cut.commit_sequence]
        if torn:
            report_loss(
                self._options,
                f"records of transactions after commit sequence {after.stream_cut.commit_sequence} were removed from "
                f"{partition_names(torn)}: all transactions after {max(removed.values())} are whole",
            )

    def _check_is_cut(
        self, offsets: Mapping[TopicPartition, int], option: str, latest: StreamOffsets
    ) -> StreamOffsets:
        """Check that offsets are a cut: each commit is before them in all partitions, or in none. Return the offsets
        together with the number of the last commit before them (the commit sequence of the cut).

        Args:
            offsets: the offset of each partition.
            option: the name of the option that gives the offsets, for messages.
            latest: the last cut.

        Raises:
            UsageError: the offsets are not a cut.
        """
        commit_sequence = latest.stream_cut.commit_sequence
        for place, offset in offsets.items():
            for commit in self._first_commit(place, offset).commits:
                if commit.start_offset < offset:
                    raise UsageError(
                        f"{option}: offset {offset} of {partition_name(place)} is inside the transaction with commit sequence "
                        f"{commit.commit_sequence}, which has the offsets {commit.start_offset} to {commit.end_offset - 1}"
                    )
                commit_sequence = min(commit_sequence, commit.commit_sequence - 1)
        at = self.cut_at(commit_sequence)
        behind = [place for place, offset in offsets.items() if at.next_offsets.get(place, offset) < offset]
        if behind:
            raise UsageError(
                f"{option} is no cut (a position between two commits): the transactions after commit "
                f"sequence {commit_sequence} are before it in {partition_names(behind)}, and not in other "
                "partitions"
            )
        return StreamOffsets(dict(offsets), at.topic_ids, at.cut)

    def _at_time(self, timestamp_ms: int, option: str, latest: StreamOffsets) -> StreamOffsets:
        """Return the cut before the first transaction that was committed at this time or later: the position directly
        before its commit, in all partitions. `option` is the name of the option that gives the time, and `latest` is
        the last cut.
        """
        times = self._log.at_times(dict.fromkeys(latest.next_offsets, timestamp_ms))
        firsts = {place: offset for place, offset in times.items() if offset is not None}
        if not firsts:
            if option == "startingOffsets" and not self._options.latest_if_late:
                raise UnavailableError(
                    f"no record has time {timestamp_ms} or later: give an earlier time, or "
                    "startingOffsetsByTimestampStrategy=latest to begin at the end"
                )
            return latest
        commit_sequence = latest.stream_cut.commit_sequence
        for place, offset in firsts.items():
            for commit in self._first_commit(place, offset).commits:
                commit_sequence = min(commit_sequence, commit.commit_sequence - 1)
        at = self.cut_at(commit_sequence)
        found = {place: min(offset, firsts.get(place, offset)) for place, offset in at.next_offsets.items()}
        if option == "startingOffsets" and self._removed_sequence(latest)[0] > commit_sequence:
            return self._earliest(latest)
        return replace(at, next_offsets=found)

    # -- transactions ------------------------------------------------------------------------------------------

    def begins(self, place: TopicPartition, point: StreamCut) -> int:
        """Return the offset at which a stream begins to read a partition that it has not read before. In the other
        partitions it has read up to the cut `point`, a position between two commits.

        The offset is that of the first record if the partition was created after the cut. Otherwise it is the
        partition's offset at the cut.
        """
        first = self._first_commit(place, 0).commits
        cut = self._ordered.cut([place[0]], point.commit_sequence)
        if cut.removed[place] == -1 and (not first or first[0].commit_sequence > point.commit_sequence):
            return self._log.earliest([place])[place]
        begin = cut.offsets[place]
        log.warning(
            "%s is read from offset %s on, because the stream has not read this partition before. It skips the earlier "
            "records: they belong to transactions up to commit sequence %s, which it has already read in its other "
            "partitions. If you need these records, read them with a batch query",
            partition_name(place),
            begin,
            point.commit_sequence,
        )
        return begin

    def commits(self, ranges: list[Range]) -> dict[TopicPartition, Iterator[Commit]]:
        """Return an iterator for each range, by partition. It yields the transactions in the range, and the runs of
        adjacent records outside transactions, in the order of their offsets. They are requested from the log only when
        the iterator reaches them.
        """
        count_max = max(10, min(COUNT_MAX, LISTED_MAX // max(len(ranges), 1)))
        found = {}
        for wanted in ranges:
            listing = self._listings.get(wanted.place)
            if listing is None or listing.start > wanted.start:
                listing = self._listings[wanted.place] = _Listing(self._ordered, wanted.place, wanted.start)
            found[wanted.place] = listing.commits_within(wanted, count_max)
        return found

    def clear_listings(self) -> None:
        """Drop the cached lists of transactions, because topics were deleted or replaced."""
        self._listings.clear()


class _Listing:
    """The list of a partition's transactions, as far as the broker or the store has reported them. Those that a
    micro-batch does not read stay in memory for the next one.
    """

    def __init__(self, ordered: CommitOrderedLog, place: TopicPartition, start: int) -> None:
        self.start = start
        self._ordered = ordered
        self._place = place
        self._reached = start
        self._listed: deque[Commit] = deque()

    def commits_within(self, wanted: Range, count_max: int) -> Iterator[Commit]:
        """Yield the transactions with offsets in the range, and the runs of adjacent records outside transactions.
        Earlier ones are dropped from memory. `count_max` limits how many one request lists.
        """
        while self._listed and self._listed[0].end_offset <= wanted.start:
            self._listed.popleft()
        self.start = wanted.start
        self._reached = max(self._reached, wanted.start)
        at = 0
        while True:
            if at == len(self._listed) and (self._reached >= wanted.end or not self._list_more(count_max)):
                return
            if at < len(self._listed):
                if self._listed[at].start_offset >= wanted.end:
                    return
                yield self._listed[at]
                at += 1

    def _list_more(self, count_max: int) -> bool:
        """Request up to `count_max` further transactions, or runs of adjacent records outside transactions. Return True
        if there were any, so that the list now reaches a greater offset.
        """
        before = self._reached
        found = self._ordered.commits(self._place, before, count_max, with_outside=True)
        for commit in found.commits:
            # A run of records outside transactions may have grown after its first part was listed. List only the new
            # part.
            start = max(commit.start_offset, before) if commit.commit_sequence < 0 else commit.start_offset
            self._listed.append(commit._replace(start_offset=start))
        is_all = len(found.commits) < count_max
        self._reached = found.end_offset if is_all else found.commits[-1].end_offset
        return self._reached > before


def batch_ranges(options: ReadOptions, log_: Log) -> tuple[list[Range], dict[str, str]]:
    """Return a pair: the ranges of offsets that a batch reads, and the id of each of its topics, by name. If the option
    cut is set, the ranges begin and end between two commits, so that no transaction is divided.

    Raises:
        UsageError: the offsets of an option do not match the partitions, or divide a transaction although the option
            cut is set.
        UnavailableError: requested offsets are not in the log.
    """
    if not options.cut:
        return resolve.batch_ranges(options, log_)
    cuts = Cuts(options, log_)
    latest = cuts.last_cut()
    end = cuts.resolve_bound(options.ending, "endingOffsets", latest)
    start = cuts.resolve_bound(options.starting, "startingOffsets", latest)
    if start.stream_cut.commit_sequence > end.stream_cut.commit_sequence:
        raise UsageError(
            f"the read begins after commit sequence {start.stream_cut.commit_sequence}, but ends after "
            f"{end.stream_cut.commit_sequence}, which is earlier: give a later end"
        )
    return ranges_between(start.next_offsets, end.next_offsets), dict(end.topic_ids)
