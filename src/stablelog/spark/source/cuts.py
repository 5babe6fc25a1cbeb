"""Cuts of a read: options and transactions become offsets of all partitions.

A reader that reads from one cut to another gets whole transactions over all topics. An option may name offsets that are
no cut (in the middle of a transaction, or before a transaction in one partition and after it in another): such a read
is refused. If the beginning of the log was removed, transactions may have lost records in some partitions. The earliest
cut is therefore the first one after which nothing has been removed.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.cluster import Cluster
from stablelog.client.commits import Commit, Commits, describe_commits
from stablelog.client.cuts import Cut, describe_cut
from stablelog.client.responses import Missing
from stablelog.errors import InvalidConfig, Refused, Unavailable
from stablelog.spark.offsets import Bound, CutPoint, StreamOffsets
from stablelog.spark.options import ReadOptions
from stablelog.spark.source import broker_log, resolve
from stablelog.spark.source.resolve import Log, Range, lost, name, names, ranges_between
from stablelog.types import TopicPartition
from stablelog.wire.extension.commits import COUNT_MAX
from stablelog.wire.extension.cut import NOT_KNOWN, RESOLVED

log = logging.getLogger(__name__)
PAUSE_S: Final = 0.002
SETTLING_TRIES: Final = 5000  # Maximum number of pauses while waiting for markers of acknowledged commits.
TRIES: Final = 10  # while topics come and go
LISTED_MAX: Final = 32_000  # transactions that are listed at once, over all partitions


def broker_of(log_: Log) -> broker_log.BrokerLog:
    """The brokers behind a log that has some."""
    broker = getattr(log_, "broker", log_)
    assert isinstance(broker, broker_log.BrokerLog)
    return broker


class Cuts:
    """The cuts through the topics that a read's options name.

    Args:
        options: the options of the read.
        log_: lists the partitions.
        there: returns the present partitions; None for those of the log. A stream may accept that some are gone.
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
        self._cluster = broker_of(log_).cluster
        self._partitions: dict[TopicPartition, str] = {}
        self._listings: dict[TopicPartition, _Listing] = {}
        self._held_at = -1  # The last cut for which a wait was in vain.

    # -- cuts --------------------------------------------------------------------------------------------------

    def latest(self, known: StreamOffsets | None = None) -> StreamOffsets:
        """The last cut, with every commit that was acknowledged before this call.

        Args:
            known: the last cut a moment ago. If no commit has come since in these topics, it is returned without
                further requests.
        """
        if known is None or not self._partitions:
            self._partitions = self._there()
        cut = self._settled()
        if known is not None and self._chosen(cut) == known.next_offsets:
            return known
        return self._through(cut)

    def _settled(self) -> Cut:
        """The last cut, once the markers of acknowledged commits are durable. The wait is limited."""
        cut = first = self._ask(RESOLVED)
        for _ in range(SETTLING_TRIES):
            if cut.commit_sequence >= first.last_commit_sequence or cut.commit_sequence == self._held_at:
                return cut
            time.sleep(PAUSE_S)
            cut = self._ask(RESOLVED)
        log.warning(
            "the cut is at commit sequence %s, although %s was committed before the request: `stablelog cut` shows "
            "what holds the cut",
            cut.commit_sequence,
            first.last_commit_sequence,
        )
        self._held_at = cut.commit_sequence
        return cut

    def at(self, commit_sequence: int) -> StreamOffsets:
        """The cut at a commit sequence that is resolved."""
        if not self._partitions:
            self._partitions = self._there()
        return self._through(self._ask(commit_sequence))

    def regained(self, commit_sequence: int) -> StreamOffsets | None:
        """The cut at a commit sequence that was resolved before, and is not now; None if it never will be.

        After a start of the broker, commits become resolved again as their partitions are opened. This call waits.
        """
        try:
            return self.at(commit_sequence)
        except InvalidConfig:
            return None

    def _ask(self, commit_sequence: int, places: Iterable[TopicPartition] | None = None) -> Cut:
        topics = {topic for topic, _ in (self._partitions if places is None else places)}
        try:
            return describe_cut(self._cluster, sorted(topics), commit_sequence)
        except Refused as refused:
            if isinstance(refused, Missing) and places is None:
                before, self._partitions = self._partitions, self._there()  # raises if failOnDataLoss is true
                if self._partitions.keys() != before.keys():
                    return self._ask(commit_sequence)
            if refused.code is ErrorCode.invalid_request:
                raise InvalidConfig(f"cut=true: {refused}") from refused
            raise

    def _through(self, cut: Cut) -> StreamOffsets:
        """A cut through all topics that existed when it was made.

        A topic that was created meanwhile may be in transactions of the cut, so the topics are listed again afterwards.
        """
        for _ in range(TRIES):
            before, self._partitions = self._partitions, self._there()
            if before == self._partitions:
                break
            cut = self._ask(cut.commit_sequence)
        else:
            raise Unavailable("the topics of the read are created and deleted faster than they can be listed")
        point = CutPoint(cut.commit_sequence, cut.group)
        return StreamOffsets(self._chosen(cut), resolve.topic_ids_of(self._partitions), point)

    def _chosen(self, cut: Cut) -> dict[TopicPartition, int]:
        return {place: cut.offsets[place] for place in self._partitions if place in cut.offsets}

    # -- bounds of options -------------------------------------------------------------------------------------

    def resolve(self, bound: Bound, option: str, latest: StreamOffsets) -> StreamOffsets:
        """The cut at which a bound lies.

        Args:
            bound: the beginning or the end of the read.
            option: the option's name, `startingOffsets` or `endingOffsets`.
            latest: the last cut.

        Raises:
            InvalidConfig: the bound is not a cut.
            Unavailable: the cut has been removed from the log, or is not resolved yet.
        """
        if bound.kind == "latest":
            return latest
        if bound.kind == "earliest":
            return self._earliest(latest)
        if bound.kind == "timestamp":
            return self._at_time(bound.timestamp_ms, option, latest)
        if bound.kind == "cut":
            if bound.commit_sequence > latest.point.commit_sequence:
                raise InvalidConfig(
                    f"{option.replace('Offsets', 'Cut')}={bound.commit_sequence}: the last commit that is resolved is "
                    f"{latest.point.commit_sequence}"
                )
            found = self.at(bound.commit_sequence)
        else:
            earliest = self._log.earliest(list(latest.next_offsets))
            offsets = resolve.resolve(self._options, self._log, bound, option, earliest, latest.next_offsets)
            found = self._checked(offsets, option, latest)
        if option == "startingOffsets":
            self.check_whole(found, found.next_offsets if bound.kind == "offsets" else ())
        return found

    def _first(self, place: TopicPartition, offset: int) -> Commits:
        return describe_commits(self._cluster, *place, offset=offset, count_max=1)

    def _earliest(self, latest: StreamOffsets) -> StreamOffsets:
        """The first cut after which nothing has been removed."""
        commit_sequence, places = self._removed(latest)
        if not places:
            return StreamOffsets(
                dict.fromkeys(latest.next_offsets, 0),
                latest.topic_ids,
                latest.point._replace(commit_sequence=0),
            )
        log.warning(
            "the beginning of %s was removed: whole transactions begin behind commit sequence %s",
            names(places),
            commit_sequence,
        )
        return self.at(commit_sequence)

    @staticmethod
    def _bounded(removed: int, last: int) -> int:
        return last if removed == NOT_KNOWN else min(removed, last)

    def _removed(self, latest: StreamOffsets) -> tuple[int, list[TopicPartition]]:
        """The commit sequence after which nothing has been removed, and the partitions that have lost records."""
        last = latest.point.commit_sequence
        removed = {
            place: self._bounded(sequence, last)
            for place, sequence in self._ask(RESOLVED, latest.next_offsets).removed.items()
            if place in latest.next_offsets
        }
        return max(removed.values(), default=-1), [place for place in removed if removed[place] >= 0]

    def check_whole(self, after: StreamOffsets, known: Collection[TopicPartition] = ()) -> None:
        """Check that no transaction after a cut has lost records.

        Args:
            after: the cut, and the partitions that are read from there.
            known: the partitions that the stream has read up to the cut. Records before the stream's position are not
                read again, so only torn transactions matter there.

        Raises:
            Unavailable: something may have been removed, and failOnDataLoss is true.
        """
        cut = self._ask(RESOLVED, after.next_offsets)
        removed = {
            place: cut.torn[place]
            if place in known
            else self._bounded(cut.removed[place], cut.commit_sequence)
            for place in after.next_offsets
            if place in cut.removed
        }
        torn = [place for place, sequence in removed.items() if sequence > after.point.commit_sequence]
        if torn:
            lost(
                self._options,
                f"of transactions behind commit sequence {after.point.commit_sequence} something was removed from "
                f"{names(torn)}: behind {max(removed.values())} all are whole",
            )

    def _checked(
        self, offsets: Mapping[TopicPartition, int], option: str, latest: StreamOffsets
    ) -> StreamOffsets:
        """Check that offsets are a cut, and return them.

        Raises:
            InvalidConfig: they are not a cut.
        """
        commit_sequence = latest.point.commit_sequence
        for place, offset in offsets.items():
            for commit in self._first(place, offset).commits:
                if commit.start_offset < offset:
                    raise InvalidConfig(
                        f"{option}: offset {offset} of {name(place)} is inside the transaction with commit sequence "
                        f"{commit.commit_sequence}, which has the offsets {commit.start_offset} to {commit.end_offset - 1}"
                    )
                commit_sequence = min(commit_sequence, commit.commit_sequence - 1)
        at = self.at(commit_sequence)
        behind = [place for place, offset in offsets.items() if at.next_offsets.get(place, offset) < offset]
        if behind:
            raise InvalidConfig(
                f"{option} is no cut: the transactions behind commit sequence {commit_sequence} are before it in "
                f"{names(behind)}, and not in other partitions"
            )
        return StreamOffsets(dict(offsets), at.topic_ids, at.cut)

    def _at_time(self, timestamp_ms: int, option: str, latest: StreamOffsets) -> StreamOffsets:
        """The cut before the first transaction that was committed at this time or later."""
        times = self._log.at_times(dict.fromkeys(latest.next_offsets, timestamp_ms))
        firsts = {place: offset for place, offset in times.items() if offset is not None}
        if not firsts:
            if option == "startingOffsets" and not self._options.latest_if_late:
                raise Unavailable(
                    f"no record has time {timestamp_ms} or later; startingOffsetsByTimestampStrategy=latest begins at the end"
                )
            return latest
        commit_sequence = latest.point.commit_sequence
        for place, offset in firsts.items():
            for commit in self._first(place, offset).commits:
                commit_sequence = min(commit_sequence, commit.commit_sequence - 1)
        at = self.at(commit_sequence)
        found = {place: min(offset, firsts.get(place, offset)) for place, offset in at.next_offsets.items()}
        if option == "startingOffsets" and self._removed(latest)[0] > commit_sequence:
            return self._earliest(latest)
        return replace(at, next_offsets=found)

    # -- transactions ------------------------------------------------------------------------------------------

    def begins(self, place: TopicPartition, point: CutPoint) -> int:
        """The start offset of a partition that a stream reads from this cut on and has not read before.

        It is 0 if the partition was created after the cut, and the cut if transactions before the cut wrote to it.
        """
        first = self._first(place, 0).commits
        cut = describe_cut(self._cluster, [place[0]], point.commit_sequence)
        if cut.removed[place] == -1 and (not first or first[0].commit_sequence > point.commit_sequence):
            return 0
        begin = cut.offsets[place]
        log.warning(
            "%s is read from offset %s on: earlier records belong to transactions up to commit sequence %s, which the "
            "stream has read without them",
            name(place),
            begin,
            point.commit_sequence,
        )
        return begin

    def commits(self, ranges: list[Range]) -> dict[TopicPartition, Iterator[Commit]]:
        """The transactions and runs of records outside transactions in each range; requested when needed."""
        count_max = max(10, min(COUNT_MAX, LISTED_MAX // max(len(ranges), 1)))
        found = {}
        for wanted in ranges:
            listing = self._listings.get(wanted.place)
            if listing is None or listing.start > wanted.start:
                listing = self._listings[wanted.place] = _Listing(self._cluster, wanted.place, wanted.start)
            found[wanted.place] = listing.within(wanted, count_max)
        return found

    def forget(self) -> None:
        """Drop the cached lists: their topics do not exist any more."""
        self._listings.clear()


class _Listing:
    """The listed transactions and runs of a partition; kept for the next micro-batch."""

    def __init__(self, cluster: Cluster, place: TopicPartition, start: int) -> None:
        self.start = start
        self._cluster = cluster
        self._place = place
        self._reached = start
        self._listed: deque[Commit] = deque()

    def within(self, wanted: Range, count_max: int) -> Iterator[Commit]:
        """The entries that end after the range's start and begin before its end. Earlier ones are dropped."""
        while self._listed and self._listed[0].end_offset <= wanted.start:
            self._listed.popleft()
        self.start = wanted.start
        self._reached = max(self._reached, wanted.start)
        at = 0
        while True:
            if at == len(self._listed) and (self._reached >= wanted.end or not self._list(count_max)):
                return
            if at < len(self._listed):
                if self._listed[at].start_offset >= wanted.end:
                    return
                yield self._listed[at]
                at += 1

    def _list(self, count_max: int) -> bool:
        """Request more entries. Returns whether the listing advanced."""
        before = self._reached
        found = describe_commits(
            self._cluster, *self._place, offset=before, count_max=count_max, with_outside=True
        )
        for commit in found.commits:
            # A run of records outside transactions may continue: its first part is listed already.
            start = max(commit.start_offset, before) if commit.commit_sequence < 0 else commit.start_offset
            self._listed.append(commit._replace(start_offset=start))
        is_all = len(found.commits) < count_max
        self._reached = found.end_offset if is_all else found.commits[-1].end_offset
        return self._reached > before


def batch_ranges(options: ReadOptions, log_: Log) -> tuple[list[Range], dict[str, str]]:
    """The ranges that a batch reads, at cuts if the options say so, and the ids of its topics.

    Raises:
        InvalidConfig: the bounds of an option do not fit the partitions, or are no cuts.
        Unavailable: offsets that were asked for are not in the log.
    """
    if not options.cut:
        return resolve.batch_ranges(options, log_)
    cuts = Cuts(options, log_)
    latest = cuts.latest()
    end = cuts.resolve(options.ending, "endingOffsets", latest)
    start = cuts.resolve(options.starting, "startingOffsets", latest)
    if start.point.commit_sequence > end.point.commit_sequence:
        raise InvalidConfig(
            f"the read begins behind commit sequence {start.point.commit_sequence} and ends behind "
            f"{end.point.commit_sequence}, which is before it"
        )
    return ranges_between(start.next_offsets, end.next_offsets), dict(end.topic_ids)
