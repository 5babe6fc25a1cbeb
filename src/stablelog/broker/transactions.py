"""Which transaction group answers, and which there are.

A group is the commit log of its name and what is built on it (`transaction_group`). The default group is always there;
another is made when somebody first begins something in it. After a start the groups are those whose logs are found.

A transaction writes to topics of its own group only, so that each partition hears of commits of one group, whose
numbers it can be cut at. Committed offsets of consumers belong to no group.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.broker.disk_reserve import DiskReserve
from stablelog.broker.flush import GroupFlush
from stablelog.broker.groups import Groups
from stablelog.broker.journal import Journal
from stablelog.broker.tasks import Tasks
from stablelog.broker.topic_names import CONSUMER_OFFSETS_TOPIC
from stablelog.broker.topics import Topics
from stablelog.broker.transaction_group import TransactionGroup
from stablelog.coordinators.transactions.coordinator import (
    Description,
    OpenTransaction,
    TopicPartition,
    TransactionConfig,
)
from stablelog.coordinators.transactions.producer_ids import GIVEN_ID_MAX, ProducerIdSpace
from stablelog.errors import Refused
from stablelog.log.partition import Partition
from stablelog.views.commit_ordered import CommitOrderedPartition
from stablelog.wire.extension.transaction_groups import (
    DEFAULT_GROUP,
    NAME_RULE,
    group_in_words,
    group_of,
    is_group_name,
)

log = logging.getLogger(__name__)

CROSSINGS_TOLD_MAX: Final = 1000  # pairs of a group and a topic of which the broker's log tells


class Transactions:
    """All transaction groups of a broker.

    Args:
        config: the coordinators' settings.
        count_max: how many groups there may be beside the default one.
        make_log: makes, or opens, the commit log of a group; durable on return.
        topics: where markers go.
        groups: the consumer groups.
        flush: makes partitions durable.
        reserve: gives records and markers room on a full disk.
        tasks: starts what is done later.
        now_ms: the broker's clock.
    """

    def __init__(
        self,
        config: TransactionConfig,
        *,
        count_max: int,
        make_log: Callable[[str], list[Partition]],
        topics: Topics,
        groups: Groups,
        flush: GroupFlush,
        reserve: DiskReserve,
        tasks: Tasks,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._count_max = count_max
        self._make_log = make_log
        self._topics = topics
        self._consumer_groups = groups
        self._flush = flush
        self._reserve = reserve
        self._tasks = tasks
        self._now_ms = now_ms
        self._id_space = ProducerIdSpace()
        self._groups: dict[str, TransactionGroup] = {}
        self._by_log: dict[Partition, TransactionGroup] = {}
        self._awaited: dict[TopicPartition, set[str]] = {}  # groups that have something to settle there
        self._lacking: set[TopicPartition] = set()  # see `lacks_markers`
        self._crossings: set[tuple[str, str]] = set()

    # -- which there are -----------------------------------------------------------------------------------

    def load(self, logs: Mapping[str, list[Partition]]) -> None:
        """Rebuild the groups from their commit logs; markers wait until their partitions are open."""
        for name, partitions in logs.items():
            self._open(name, partitions).load()
        for group in self:
            for target in group.awaited():
                self._awaited.setdefault(target, set()).add(group.name)

    def _open(self, name: str, partitions: list[Partition]) -> TransactionGroup:
        journal = Journal(partitions, self._flush, self._reserve, self._now_ms)
        group = self._groups[name] = TransactionGroup(
            name,
            self._config,
            journal,
            id_space=self._id_space,
            topics=self._topics,
            groups=self._consumer_groups,
            flush=self._flush,
            reserve=self._reserve,
            tasks=self._tasks,
            now_ms=self._now_ms,
        )
        self._by_log[journal.partition] = group
        return group

    def __iter__(self) -> Iterator[TransactionGroup]:
        return iter(list(self._groups.values()))

    @property
    def default(self) -> TransactionGroup:
        """The default group."""
        return self._groups[DEFAULT_GROUP]

    def get(self, name: str) -> TransactionGroup | None:
        """The group of this name, if anything was ever begun in it."""
        return self._groups.get(name)

    def made(self, name: str, api: str) -> TransactionGroup:
        """The group of this name. If it is not there yet, it is made now, with an empty log that is durable.

        Args:
            name: of the group; empty for the default one.
            api: what asks for it.

        Raises:
            Refused: no group can have the name, there are too many, or the disk has no room.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        if not is_group_name(name):
            raise Refused(
                ErrorCode.invalid_request, f"{name!r} is no name of a transaction group: {NAME_RULE}"
            )
        if len(self._groups) > self._count_max:
            raise _not_made(
                f"{group_in_words(name)} would be one more than stablelog.max.transaction.groups={self._count_max}; it "
                "is named before the first slash of a transactional id"
            )
        self._reserve.check(api)
        try:
            partitions = self._make_log(name)
        except Refused as why:
            if self._reserve.note(why):
                raise Refused(ErrorCode.coordinator_load_in_progress, self._reserve.state()) from why
            raise _not_made(f"{group_in_words(name)} cannot be made: {why}") from why
        log.info("made %s", group_in_words(name))
        return self._open(name, partitions)

    def of_id(self, transactional_id: str) -> TransactionGroup:
        """The group of a transactional id whose producer has begun before.

        Raises:
            Refused: the group is not there, so that nobody has the id.
        """
        group = self._groups.get(group_of(transactional_id))
        if group is None:
            raise Refused(
                ErrorCode.invalid_producer_id_mapping, f"no producer has the id {transactional_id!r}"
            )
        return group

    def describe(self, transactional_id: str) -> Description | None:
        """What is known of an id; None if nothing is.

        The default group has ids of others from before there were others.
        """
        group = self._groups.get(group_of(transactional_id), self.default)
        found = group.coordinator.describe(transactional_id)
        return found if found is not None else self.default.coordinator.describe(transactional_id)

    # -- whose a topic is ----------------------------------------------------------------------------------

    def check_topic(self, transactional_id: str, name: str) -> None:
        """Refuse to write to a topic of another group in a transaction.

        The code is the one that every client takes for the end of the transaction, and not of the producer; it names
        the topic. The sentence goes where the protocol has room for it, and once into the broker's log.

        Raises:
            Refused: topic_authorization_failed.
        """
        topic = self._topics.get(name)
        own = group_of(transactional_id)
        if topic is None or topic.group == own or name == CONSUMER_OFFSETS_TOPIC:
            return
        fitting_id = f"that begins with {topic.group + '/'!r}" if topic.group else "without a slash"
        fitting_group = own or "''"
        refused = Refused(
            ErrorCode.topic_authorization_failed,
            f"transactional id {transactional_id!r} belongs to {group_in_words(own)} by what stands before its first slash, "
            f"and topic {name!r} to {group_in_words(topic.group)}: a transaction writes to topics of its own group. Use an "
            f"id {fitting_id}, or a topic made with stablelog.group={fitting_group}",
        )
        if (own, name) not in self._crossings and len(self._crossings) < CROSSINGS_TOLD_MAX:
            self._crossings.add((own, name))
            log.warning("%s", refused)
        raise refused

    # -- partitions ----------------------------------------------------------------------------------------

    def advanced(self, partition: Partition) -> None:
        """More of a partition is durable: if it is a commit log, what waited for it goes on."""
        group = self._by_log.get(partition)
        if group is not None:
            group.journal.settle()
            group.write_decided()

    def write_decided(self) -> None:
        """Write the markers of all decisions that are durable, to the end: the broker stops."""
        for group in self:
            group.write_decided(to_the_end=True)

    def partition_opened(self, partition: Partition) -> None:
        """A partition can be written: settle what is open in it before anyone else writes to it."""
        target = (partition.topic, partition.index)
        self._id_space.skip_past(partition.producer_state.greatest_id(GIVEN_ID_MAX))
        found = [
            OpenTransaction(txn.producer_id, txn.producer_epoch, txn.first_offset, txn.leader_epoch)
            for txn in partition.open_transactions()
        ]
        topic = self._topics.get(partition.topic)
        own_name = DEFAULT_GROUP if topic is None else topic.group
        own = self._groups.get(own_name, self.default)
        if isinstance(partition, CommitOrderedPartition):
            self.meet_sequence(own, partition.view.latest_sequence, partition.topic, partition.index)
        concerned = self._concerned(target, own_name)
        for group in concerned:
            if group is not own:
                theirs = [txn for txn in found if group.coordinator.knows(target, txn.producer_id)]
                found = [txn for txn in found if txn not in theirs]
                group.settle(target, theirs, partition)
        own.settle(target, found, partition)  # and what nobody knows
        if any(target in group.settling for group in (own, *concerned)):
            self._lacking.add(target)

    def partitions_opened(self) -> None:
        """All partitions that can be opened have been since the start."""
        for group in self:
            group.coordinator.partitions_opened()

    def _note_lacking(self) -> None:
        """Look again at which partitions lack markers."""
        self._lacking = {target for group in self._groups.values() for target in group.settling}

    def lacks_markers(self, target: TopicPartition) -> bool:
        """Whether markers from before the start wait for room in this partition. Nothing else may be written there."""
        return target in self._lacking

    @property
    def are_all_marked(self) -> bool:
        """Whether no partition that was settled lacks markers from before the start."""
        return not self._lacking

    @staticmethod
    def meet_sequence(group: TransactionGroup, sequence: int, topic_name: str, index: int) -> None:
        """Take note that a partition has this commit sequence in its markers; logged if the commit log does not know it."""
        last = group.coordinator.last_commit_sequence
        if group.coordinator.met_sequence(sequence):
            log.error(
                "%s-%d has commit %d in its markers, and the commit log of %s ends at commit %d: the commit log has lost "
                "its end, or is from an older backup. New commits go on behind %d; `stablelog repair` looks at all "
                "partitions",
                topic_name,
                index,
                sequence,
                group_in_words(group.name),
                last,
                sequence,
            )

    def retry(self) -> None:
        """Write what waits for room on the disk, as far as there is some."""
        for group in self:
            group.retry()
        self._note_lacking()

    def partition_gone(self, target: TopicPartition, group_name: str) -> None:
        """A partition of this group was deleted: drop the markers that wait for it, in every group."""
        for group in {*self._concerned(target, group_name), *(one for one in self if one.waits_at(target))}:
            group.settle(target, [], None)
        self._note_lacking()

    def _concerned(self, target: TopicPartition, group_name: str) -> list[TransactionGroup]:
        """The groups that may have something to settle in a partition of this group. Then they have not any more."""
        if target[0] == CONSUMER_OFFSETS_TOPIC:
            return list(self)
        names = self._awaited.pop(target, set()) | {group_name}
        return [self._groups[name] for name in sorted(names) if name in self._groups]


def _not_made(why: str) -> Refused:
    """The refusal of a group that is not there; InitProducerId has no room for the sentence, and the log has."""
    log.warning("%s", why)
    return Refused(ErrorCode.policy_violation, why)
