"""The transactions of a commit log (the log of a transaction coordinator) that is restored from an object store: new
states of the transactional ids, and the transactions that are incomplete.

The object store lacks the last records of the commit log. So the restore assumes the worst about what the lost broker
did after the last copy:

- A producer may have begun a further transaction, and its acknowledged records may be lost. Each transactional id gets
  a new producer id. The lost broker's producers therefore get errors, and cannot commit a transaction of which a part
  is missing. Open and prepared transactions have no records in the store, and are aborted.
- The lost broker may have assigned commit sequences and producer ids. The next ones leave a gap.

A decided transaction without a completion record stays decided: after the start the broker writes its markers where the
transaction is open.

Source: docs/decisions/0026-restore.md.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stablelog.coordinators.transactions.commit_sequences import FIRST_SEQUENCE
from stablelog.coordinators.transactions.joint.records import decode_joint
from stablelog.coordinators.transactions.producer_ids import BLOCK_SIZE, GIVEN_ID_MAX
from stablelog.coordinators.transactions.records import (
    JointKey,
    TransactionGroupKey,
    TransactionGroupState,
    TransactionKey,
    decode_group,
    decode_transaction,
    encode_group,
    encode_transaction,
    group_key,
    read_key,
    transaction_key,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.types import TopicPartition

SEQUENCE_GAP: Final = 1_000_000  # how many commit sequences the lost broker may have assigned after the copy
PRODUCER_ID_GAP: Final = 1_000_000  # how many producer ids it may have handed out


class Pair(NamedTuple):
    """The key and the value of a record of a commit log. The value is None if the record is a tombstone, which removes
    the key.
    """

    key: bytes
    value: bytes | None


@dataclass(slots=True)
class CommitLog:
    """The state of a transaction group (topics and producers with one commit log), as the records of its commit log
    show it that were copied to the object store.

    Attributes:
        group: the name of the transaction group.
        states: the last state of each transactional id.
        commits: the committed transactions, by transactional id and commit sequence. Only those whose record in the log
            still names the partitions are here.
        accepted: by the producer id and epoch of a transaction, the commit sequence (number) of the joint commit to
            which it belongs. Only transactions whose joint commit (of several transactions together) is in the log,
            while their own ends may not be, are here.
        sequence_end: the greatest commit sequence (number of a commit) plus one.
        producer_ids_end: the greatest producer id that was reserved or used, plus one.
    """

    group: str
    states: dict[str, TransactionMetadata] = field(default_factory=dict)
    commits: dict[tuple[str, int], TransactionMetadata] = field(default_factory=dict)
    accepted: dict[tuple[int, int], int] = field(default_factory=dict)
    sequence_end: int = FIRST_SEQUENCE
    producer_ids_end: int = 0

    def read_records(self, records: Iterable[Pair]) -> None:
        """Read records of the commit log, in their order, and update the attributes.

        Raises:
            UnknownFormatError: a later release has written a record.
            DamageError: a record is damaged.
        """
        for key, value in records:
            subject = read_key(key)
            if isinstance(subject, TransactionGroupKey) and value is not None and subject.group == self.group:
                state = decode_group(value)
                self.sequence_end = max(self.sequence_end, state.commit_sequence_next)
                self.producer_ids_end = max(self.producer_ids_end, state.producer_ids_end)
            elif isinstance(subject, JointKey) and value is not None:
                joint = decode_joint(value)
                self.sequence_end = max(self.sequence_end, joint.commit_sequence + 1)
                self.accepted |= dict.fromkeys(joint.accepted, joint.commit_sequence)
            elif isinstance(subject, TransactionKey):
                if value is None:
                    self.states.pop(subject.transactional_id, None)
                else:
                    self._read_state(subject.transactional_id, decode_transaction(value))

    def _read_state(self, transactional_id: str, txn: TransactionMetadata) -> None:
        self.states[transactional_id] = txn
        self.sequence_end = max(self.sequence_end, txn.commit_sequence + 1)
        for producer_id in (txn.producer_id, txn.next_producer_id):
            self.raise_producer_ids_end(producer_id)
        if txn.state is TransactionState.PREPARE_COMMIT:
            self.commits[transactional_id, txn.commit_sequence] = txn

    def raise_producer_ids_end(self, producer_id: int) -> None:
        """Record that a producer id is in use: new ids begin above it. An id outside the range from which coordinators
        hand out ids is ignored.
        """
        if producer_id <= GIVEN_ID_MAX:
            self.producer_ids_end = max(self.producer_ids_end, producer_id + 1)


class Torn(NamedTuple):
    """A torn transaction: a restore has found its commit only in part, because the object store has some partitions of
    the commit and lacks others.

    The commit can be a joint commit of several transactions. Each of them is listed, even if it is complete itself.

    Attributes:
        transactional_id: the transactional id.
        commit_sequence: the number of the commit in its transaction group (topics with one order of commits). The
            transactions of a joint commit have the same number.
        found: the partitions in which the store has the transaction.
        lost: the partitions in which the store lacks the transaction.
    """

    transactional_id: str
    commit_sequence: int
    found: tuple[TopicPartition, ...]
    lost: tuple[TopicPartition, ...]


def torn_commits(log: CommitLog, holds: Callable[[TopicPartition, TransactionMetadata], bool]) -> list[Torn]:
    """Return all transactions of torn commits (those that the object store has only in part), in the order of the
    commits.

    Args:
        log: the state of the transaction group, as its commit log (the coordinator's log) shows it.
        holds: returns whether the store has a committed transaction in a partition.
    """
    commits: dict[int, list[Torn]] = {}
    for (transactional_id, sequence), txn in log.commits.items():
        places = sorted(txn.partitions)
        found = tuple(one for one in places if holds(one, txn))
        lost = tuple(one for one in places if one not in found)
        commits.setdefault(sequence, []).append(Torn(transactional_id, sequence, found, lost))
    for transactional_id, txn in log.states.items():
        accepted = log.accepted.get(txn.client)
        if accepted is not None and txn.state is TransactionState.ONGOING:
            # The log ends before the decision of this child, so no copy of a topic has the child.
            lost = tuple(sorted(txn.partitions))
            commits.setdefault(accepted, []).append(Torn(transactional_id, accepted, (), lost))
    return [
        one
        for _, parts in sorted(commits.items())
        if any(one.found for one in parts) and any(one.lost for one in parts)
        for one in parts
    ]


class Numbers(NamedTuple):
    """The numbers with which the restored broker continues.

    Attributes:
        producer_ids_end: the end of the producer ids that the lost broker may have handed out.
        next_producer_id: the first free producer id, above those of the restored transactional ids.
        commit_sequences: by transaction group (topics with one order of commits), the number that the next commit gets.
    """

    producer_ids_end: int
    next_producer_id: int
    commit_sequences: Mapping[str, int]


def restored_records(logs: Iterable[CommitLog], now_ms: int) -> tuple[dict[str, list[Pair]], Numbers]:
    """Return what a restored broker needs to continue after the commit logs that were copied.

    Args:
        logs: the states of the transaction groups, each of which has a commit log of its own. Their end numbers already
            cover the producer ids and commit sequences that the copied partitions contain.
        now_ms: the present time.

    Returns:
        A pair: by transaction group, the records to append to the commit log of the group; and the numbers with which
        the broker continues.
    """
    logs = list(logs)
    known_end = max((one.producer_ids_end for one in logs), default=0) + PRODUCER_ID_GAP
    producer_ids_end = producer_id = -(-known_end // BLOCK_SIZE) * BLOCK_SIZE
    records: dict[str, list[Pair]] = {}
    sequences: dict[str, int] = {}
    for log in logs:
        pairs = records[log.group] = []
        for transactional_id, txn in sorted(log.states.items()):
            pairs.append(
                Pair(transaction_key(transactional_id), encode_transaction(_fenced(txn, producer_id, now_ms)))
            )
            producer_id += 1
        sequences[log.group] = log.sequence_end + SEQUENCE_GAP
    next_id = -(-producer_id // BLOCK_SIZE) * BLOCK_SIZE
    for log in logs:
        state = TransactionGroupState(next_id, sequences[log.group])
        records[log.group].append(Pair(group_key(log.group), encode_group(state)))
    return records, Numbers(producer_ids_end, next_id, sequences)


def _fenced(txn: TransactionMetadata, producer_id: int, now_ms: int) -> TransactionMetadata:
    """Return the fenced state of a transactional id, with a new producer id: the producer that has used the id until
    now gets an error with its next request.
    """
    if txn.state.is_decided:
        return txn._replace(
            next_producer_id=producer_id,
            next_producer_epoch=0,
            previous_producer_id=-1,
            last_producer_epoch=-1,
        )
    return TransactionMetadata(producer_id, 0, txn.timeout_ms, TransactionState.EMPTY, update_ms=now_ms)
