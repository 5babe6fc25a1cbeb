"""Where the cuts are that a read begins and ends at: options and transactions become offsets of all partitions.

A reader that reads from one cut to another gets whole transactions over all topics. What an option says may be no
cut (offsets in the middle of a transaction, or before a transaction in one partition and behind it in another): that
is refused. Where the log has lost its beginning, transactions may have lost a part of themselves, in other
partitions than they are read from: the earliest cut is the first one behind which nothing has been removed.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.cluster import Cluster, Missing
from stablelog.client.commits import Commit, Commits, describe_commits
from stablelog.client.cuts import Cut, describe_cut
from stablelog.errors import InvalidConfig, Refused, Unavailable
from stablelog.spark import fetch, resolve
from stablelog.spark.offsets import Bound, CutPoint, Place, StreamOffsets
from stablelog.spark.options import ReadOptions
from stablelog.spark.resolve import Log, Range, lost, name, names, ranges_between
from stablelog.wire.extension.commits import COUNT_MAX
from stablelog.wire.extension.cut import NOT_KNOWN, RESOLVED

log = logging.getLogger(__name__)
PAUSE_S: Final = 0.002
SETTLING_TRIES: Final = 5000  # so many pauses, for markers of commits that were answered before
TRIES: Final = 10  # while topics come and go
LISTED_MAX: Final = 32_000  # transactions that are listed at once, over all partitions


def cluster_of(log_: Log) -> Cluster:
    """The brokers behind a log, which has some."""
    broker = getattr(log_, "broker", log_)
    assert isinstance(broker, fetch.BrokerLog)
    return broker.cluster


class Cuts:
    """The cuts through the topics that a read's options name.

    Args:
        options: of the read.
        log_: says which partitions there are.
        cluster: is asked.
        there: the partitions by now, if not simply those of the log: a stream may bear that some are gone.
    """

    def __init__(
        self,
        options: ReadOptions,
        log_: Log,
        cluster: Cluster,
        there: Callable[[], dict[Place, str]] | None = None,
    ) -> None:
        self._options = options
        self._log = log_
        self._there = log_.partitions if there is None else there
        self._cluster = cluster
        self._partitions: dict[Place, str] = {}
        self._listings: dict[Place, _Listing] = {}
        self._held_at = -1  # the last cut when it was waited for in vain

    # -- cuts --------------------------------------------------------------------------------------------------

    def latest(self, known: StreamOffsets | None = None) -> StreamOffsets:
        """The last cut, with every commit that was answered before this call.

        Args:
            known: one that was the last a moment ago. If nothing has come since, it is returned, and nothing else was
                asked: commits in other topics are none of this read's.
        """
        if known is None or not self._partitions:
            self._partitions = self._there()
        cut = self._settled()
        if known is not None and self._chosen(cut) == known.next_offsets:
            return known
        return self._through(cut)

    def _settled(self) -> Cut:
        """The last cut, once the markers of what was answered before are durable; not for ever."""
        cut = first = self._ask(RESOLVED)
        for _ in range(SETTLING_TRIES):
            if cut.commit_sequence >= first.last_commit_sequence or cut.commit_sequence == self._held_at:
                return cut
            time.sleep(PAUSE_S)
            cut = self._ask(RESOLVED)
        log.warning(
            "the cut is at commit sequence %s, and %s was committed before it was asked for: `stablelog cut` says "
            "what holds it",
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

        After a start of the broker commits are resolved again as their partitions are opened: that is waited for.
        """
        try:
            return self.at(commit_sequence)
        except InvalidConfig:
            return None

    def _ask(self, commit_sequence: int, places: Iterable[Place] | None = None) -> Cut:
        topics = {topic for topic, _ in (self._partitions if places is None else places)}
        try:
            return describe_cut(self._cluster, sorted(topics), commit_sequence)
        except Refused as refused:
            if isinstance(refused, Missing) and places is None:
                before, self._partitions = self._partitions, self._there()  # says so, if that is not borne
                if self._partitions.keys() != before.keys():
                    return self._ask(commit_sequence)
            if refused.code is ErrorCode.invalid_request:
                raise InvalidConfig(f"cut=true: {refused}") from refused
            raise

    def _through(self, cut: Cut) -> StreamOffsets:
        """A cut through all topics that there were when it was made.

        A topic that came into being meanwhile may be in transactions of the cut, so it is looked for afterwards.
        """
        for _ in range(TRIES):
            before, self._partitions = self._partitions, self._there()
            if _ids(before) == _ids(self._partitions):
                break
            cut = self._ask(cut.commit_sequence)
        else:
            raise Unavailable("the topics that are read come and go faster than they can be read")
        ids = {topic: topic_id for topic, topic_id in _ids(self._partitions).items() if topic_id}
        point = CutPoint(cut.commit_sequence, cut.group)
        return StreamOffsets(self._chosen(cut), ids, point)

    def _chosen(self, cut: Cut) -> dict[Place, int]:
        return {place: cut.offsets[place] for place in self._partitions if place in cut.offsets}

    # -- what options say --------------------------------------------------------------------------------------

    def resolve(self, bound: Bound, option: str, latest: StreamOffsets) -> StreamOffsets:
        """The cut at which a bound lies.

        Args:
            bound: of the read.
            option: its name, `startingOffsets` or `endingOffsets`.
            latest: the last cut.

        Raises:
            InvalidConfig: it is no cut.
            Unavailable: what is asked for is not there any more, or not yet.
        """
        assert latest.cut is not None
        if bound.kind == "latest":
            return latest
        if bound.kind == "earliest":
            return self._earliest(latest)
        if bound.kind == "timestamp":
            return self._at_time(bound.timestamp_ms, option, latest)
        if bound.kind == "cut":
            if bound.commit_sequence > latest.cut.commit_sequence:
                raise InvalidConfig(
                    f"{option.replace('Offsets', 'Cut')}={bound.commit_sequence}: the last commit that is resolved is "
                    f"{latest.cut.commit_sequence}"
                )
            found = self.at(bound.commit_sequence)
        else:
            earliest = self._log.earliest(list(latest.next_offsets))
            offsets = resolve.resolve(self._options, self._log, bound, option, earliest, latest.next_offsets)
            found = self._checked(offsets, option, latest)
        if option == "startingOffsets":
            self.check_whole(found, found.next_offsets if bound.kind == "offsets" else ())
        return found

    def _first(self, place: Place, offset: int) -> Commits:
        return describe_commits(self._cluster, *place, offset=offset, count_max=1)

    def _earliest(self, latest: StreamOffsets) -> StreamOffsets:
        """The first cut behind which nothing has been removed."""
        assert latest.cut is not None
        commit_sequence, places = self._removed(latest)
        if not places:
            return StreamOffsets(
                dict.fromkeys(latest.next_offsets, 0),
                latest.topic_ids,
                latest.cut._replace(commit_sequence=0),
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

    def _removed(self, latest: StreamOffsets) -> tuple[int, list[Place]]:
        """The commit sequence behind which nothing has been removed, and the partitions from which something was."""
        assert latest.cut is not None
        last = latest.cut.commit_sequence
        removed = {
            place: self._bounded(sequence, last)
            for place, sequence in self._ask(RESOLVED, latest.next_offsets).removed.items()
            if place in latest.next_offsets
        }
        return max(removed.values(), default=-1), [place for place in removed if removed[place] >= 0]

    def check_whole(self, after: StreamOffsets, known: Collection[Place] = ()) -> None:
        """Say if something was removed of a transaction behind a cut.

        Args:
            after: the cut, and the partitions that are read from there.
            known: those of them that were read up to there before. A position that is left tells that nothing before it
                is to be read, so only torn transactions matter.

        Raises:
            Unavailable: something may have been removed, and failOnDataLoss is true.
        """
        assert after.cut is not None
        cut = self._ask(RESOLVED, after.next_offsets)
        removed = {
            place: cut.torn[place]
            if place in known
            else self._bounded(cut.removed[place], cut.commit_sequence)
            for place in after.next_offsets
            if place in cut.removed
        }
        torn = [place for place, sequence in removed.items() if sequence > after.cut.commit_sequence]
        if torn:
            lost(
                self._options,
                f"of transactions behind commit sequence {after.cut.commit_sequence} something was removed from "
                f"{names(torn)}: behind {max(removed.values())} all are whole",
            )

    def _checked(self, offsets: Mapping[Place, int], option: str, latest: StreamOffsets) -> StreamOffsets:
        """Offsets, if they are a cut.

        Raises:
            InvalidConfig: they are not.
        """
        assert latest.cut is not None
        commit_sequence = latest.cut.commit_sequence
        for place, offset in offsets.items():
            for commit in self._first(place, offset).commits:
                if commit.start_offset < offset:
                    raise InvalidConfig(
                        f"{option}: offset {offset} of {name(place)} lies inside of the transaction with commit sequence "
                        f"{commit.commit_sequence}, which stands at {commit.start_offset} to {commit.end_offset - 1}"
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
        """The cut in front of the first transaction that was committed at this time or later."""
        assert latest.cut is not None
        times = self._log.at_times(dict.fromkeys(latest.next_offsets, timestamp_ms))
        firsts = {place: offset for place, offset in times.items() if offset is not None}
        if not firsts:
            if option == "startingOffsets" and not self._options.latest_if_late:
                raise Unavailable(
                    f"no record has time {timestamp_ms} or later; startingOffsetsByTimestampStrategy=latest begins at the end"
                )
            return latest
        commit_sequence = latest.cut.commit_sequence
        for place, offset in firsts.items():
            for commit in self._first(place, offset).commits:
                commit_sequence = min(commit_sequence, commit.commit_sequence - 1)
        at = self.at(commit_sequence)
        found = {place: min(offset, firsts.get(place, offset)) for place, offset in at.next_offsets.items()}
        if option == "startingOffsets" and self._removed(latest)[0] > commit_sequence:
            return self._earliest(latest)
        return replace(at, next_offsets=found)

    # -- transactions ------------------------------------------------------------------------------------------

    def begins(self, place: Place, point: CutPoint) -> int:
        """Where a partition begins that a stream reads from this cut on and has not read before it.

        At its beginning, if it came into being behind the cut; at the cut, if transactions of it are before the cut.
        """
        first = self._first(place, 0).commits
        cut = describe_cut(self._cluster, [place[0]], point.commit_sequence)
        if cut.removed[place] == -1 and (not first or first[0].commit_sequence > point.commit_sequence):
            return 0
        begin = cut.offsets[place]
        log.warning(
            "%s is read from offset %s on: what stands before it belongs to transactions up to commit sequence %s, which "
            "the stream has read without it",
            name(place),
            begin,
            point.commit_sequence,
        )
        return begin

    def commits(self, ranges: list[Range]) -> dict[Place, Iterator[Commit]]:
        """What stands in each range, transactions and runs of records outside; asked for as it is taken."""
        count_max = max(10, min(COUNT_MAX, LISTED_MAX // max(len(ranges), 1)))
        found = {}
        for wanted in ranges:
            listing = self._listings.get(wanted.place)
            if listing is None or listing.start > wanted.start:
                listing = self._listings[wanted.place] = _Listing(self._cluster, wanted.place, wanted.start)
            found[wanted.place] = listing.within(wanted, count_max)
        return found

    def forget(self) -> None:
        """What was listed is of topics that are not there any more."""
        self._listings.clear()


class _Listing:
    """What stands in a partition, as far as it was asked for; kept for the next micro-batch."""

    def __init__(self, cluster: Cluster, place: Place, start: int) -> None:
        self.start = start
        self._cluster = cluster
        self._place = place
        self._reached = start
        self._listed: deque[Commit] = deque()

    def within(self, wanted: Range, count_max: int) -> Iterator[Commit]:
        """What ends behind the range's start and begins before its end. What stands before it is forgotten."""
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
        """Ask for more. Returns whether the listing came further."""
        before = self._reached
        found = describe_commits(
            self._cluster, *self._place, offset=before, count_max=count_max, with_outside=True
        )
        for commit in found.commits:
            # Of a run that goes on, the first part is known.
            start = max(commit.start_offset, before) if commit.commit_sequence < 0 else commit.start_offset
            self._listed.append(commit._replace(start_offset=start))
        is_all = len(found.commits) < count_max
        self._reached = found.end_offset if is_all else found.commits[-1].end_offset
        return self._reached > before


def batch_ranges(options: ReadOptions, log_: Log) -> tuple[list[Range], dict[str, str]]:
    """What a batch reads, at cuts if that is asked for, and the ids of its topics.

    Raises:
        InvalidConfig: the bounds of an option do not fit the partitions, or are no cuts.
        Unavailable: offsets that were asked for are not in the log.
    """
    if not options.cut:
        return resolve.batch_ranges(options, log_)
    cuts = Cuts(options, log_, cluster_of(log_))
    latest = cuts.latest()
    end = cuts.resolve(options.ending, "endingOffsets", latest)
    start = cuts.resolve(options.starting, "startingOffsets", latest)
    assert start.cut is not None
    assert end.cut is not None
    if start.cut.commit_sequence > end.cut.commit_sequence:
        raise InvalidConfig(
            f"what is to be read begins behind commit sequence {start.cut.commit_sequence} and ends behind "
            f"{end.cut.commit_sequence}, which is before it"
        )
    return ranges_between(start.next_offsets, end.next_offsets), dict(end.topic_ids)


def _ids(partitions: Mapping[Place, str]) -> dict[str, str]:
    return {topic: topic_id for (topic, _), topic_id in partitions.items()}
