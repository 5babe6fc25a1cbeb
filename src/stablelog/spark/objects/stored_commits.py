"""Cuts of topics in an object store, and the transactions of their partitions, without a broker. A cut is a position
between two commits in all partitions; the commit sequence is the number of a commit.

In the store, the copies of the partitions end at different commits, so a transaction may be in the store in one
partition and not yet in another. Each partition has its transactions in the order of their commit sequences. So if
every partition has a transaction with the commit sequence R or a later one, the store has all transactions up to R, in
all partitions. The greatest such R is the last cut of the store. One case needs care: several transactions that are
committed by one joint commit (its children) have the same commit sequence. While one of them may still be open at the
end of a partition, the last commit sequence of this partition does not count.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.blocking.commits import Commit, Commits
from stablelog.client.blocking.cuts import Cut
from stablelog.commit_order.stored_view import StoredOrder
from stablelog.errors import RefusedError
from stablelog.spark.objects.tiered_partition import TieredPartition
from stablelog.types import TopicPartition
from stablelog.wire.extension.cut import NOT_KNOWN, RESOLVED
from stablelog.wire.extension.transaction_groups import group_in_words

log = logging.getLogger(__name__)
NONE: Final = -1  # stands for no commit sequence


def commits_between(
    order: StoredOrder, start: int, end: int, offset: int, count_max: int, *, with_outside: bool
) -> Commits:
    """Return the first transactions at the positions [start, end) that end after the position `offset`. Positions are
    offsets in commit order, the order in which readers of the partition get its transactions.

    Args:
        order: the partition in commit order.
        start: the first position of the range.
        end: the position after the last one of the range.
        offset: transactions that end at this position or before are left out.
        count_max: the maximum number of transactions to return.
        with_outside: whether records outside transactions are listed, too.

    Raises:
        StoreError: the store does not answer, or rejects a request.
        DamageError: a commit index is damaged.
    """
    found = order.transactions(max(offset, start), count_max, with_outside=with_outside, end=end)
    return Commits(None, start, end, tuple(Commit(*one) for one in found))


def last_complete_sequence(stored: TieredPartition) -> int:
    """Return the greatest commit sequence (the number of a commit in its transaction group) up to which the store has
    all commits of a partition. Commits that were lost for good when the broker was restored from the store do not count
    as missing.
    """
    segments = stored.manifest.segments
    # What the restore did not find is gone: see `Restored.torn_sequence`.
    found_by_restore = NONE if stored.restored is None else stored.restored.next_sequence - 1
    latest = stored.order.latest_sequence
    if segments and (segments[-1].stable_offset or 0) < segments[-1].end_offset:
        latest -= 1
    return max(latest, found_by_restore)


def _removed(stored: TieredPartition, torn: int) -> int:
    """Return the greatest commit sequence (the number of a commit) of a transaction that may have lost records in this
    partition, as the broker's API DescribeCut reports it. Return NONE if there is no such transaction, and NOT_KNOWN if
    the store does not tell. `torn` is the greatest commit sequence of a transaction whose beginning is missing
    (`StoredOrder.torn_sequence`).
    """
    found = stored.order.removed_sequence()
    return NOT_KNOWN if found is None and torn == NONE else max(NONE if found is None else found, torn)


class StoredCuts:
    """Finds cuts (positions between two commits, in all partitions) in an object store, for one read or one stream.

    Args:
        url: the URL of the store, for messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        # The last cut, and the greatest commit sequence that the store had then.
        self._last = self._latest = NONE

    def cut(
        self, partitions: Mapping[TopicPartition, TieredPartition], commit_sequence: int = RESOLVED
    ) -> Cut:
        """Return a cut of these partitions: for each, the offset that divides the commits up to a commit sequence (the
        number of a commit) from the later ones. If the commit sequence is RESOLVED, return the last cut.

        Raises:
            RefusedError: with the code invalid_request: a topic is not commit-ordered, or the topics are in several
                transaction groups, or the store does not have all transactions up to the commit sequence.
            StoreError: the store does not answer, or rejects a request.
            DamageError: a commit index is damaged.
        """
        group = self.group(partitions.values())
        ends = {place: last_complete_sequence(stored) for place, stored in partitions.items()}
        behind = min(ends, key=lambda place: (ends[place], place))
        last = max(ends[behind], 0)
        if commit_sequence > last:
            raise RefusedError(
                ErrorCode.invalid_request,
                f"there is no cut (a position between two commits) at commit sequence {commit_sequence} in "
                f"{self._url} yet: the last one is at {last}, because the store may lack later transactions "
                f"of {behind[0]}-{behind[1]}",
            )
        if commit_sequence == RESOLVED:
            self._tell(last, max(ends.values()), behind)
            commit_sequence = last
        torn = {place: stored.order.torn_sequence() for place, stored in partitions.items()}
        return Cut(
            group,
            commit_sequence,
            {place: stored.offset_after(commit_sequence) for place, stored in partitions.items()},
            commit_sequence,
            (),
            {place: _removed(stored, torn[place]) for place, stored in partitions.items()},
            torn,
        )

    def group(self, partitions: Collection[TieredPartition]) -> str:
        """Return the name of the transaction group (topics whose commits have one order) to which the topics of some
        partitions belong. Raises RefusedError if the topics belong to several groups, or if one is not commit-ordered:
        then it has no order of commits.
        """
        groups: dict[str, str] = {}
        for stored in partitions:
            topic = stored.partition.topic
            if not stored.is_in_commit_order:
                raise RefusedError(
                    ErrorCode.invalid_request,
                    f"{topic!r} in {self._url} is not commit-ordered, so its transactions may overlap: a cut needs topics "
                    "that were created with stablelog.order=commit",
                )
            groups.setdefault(stored.group, topic)
        if len(groups) > 1:
            (one, topic), (other, second) = list(groups.items())[:2]
            raise RefusedError(
                ErrorCode.invalid_request,
                f"the topics have no common cut, because {topic!r} belongs to {group_in_words(one)}, and {second!r} to "
                f"{group_in_words(other)}: each group numbers its own commits, so all topics of a cut must belong to "
                "one group",
            )
        return next(iter(groups))

    def _tell(self, last: int, latest: int, behind: TopicPartition) -> None:
        """Log which partition holds back the last cut: the last position at which the store has all transactions in all
        partitions. The line is a warning only if the cut has not moved since the last call, because a store that is
        still written to always lags a little.

        Args:
            last: the commit sequence of the last cut: the number of the last commit before it.
            latest: the greatest commit sequence in the store.
            behind: the partition that has no commits after the cut yet.
        """
        stays = last == 0 or (last == self._last and latest > self._latest)
        if last < latest > self._latest:
            log.log(
                logging.WARNING if stays else logging.INFO,
                "the last cut is at commit sequence %s, although %s has commits up to %s: it has no later commit of %s-%s, "
                "which may have some that are not copied yet, or that retention has removed. A read with "
                "kafka.bootstrap.servers goes on from there",
                last,
                self._url,
                latest,
                *behind,
            )
        self._last, self._latest = last, latest
