"""What does a record of the commit log (`__transaction_state`) say, byte for byte?

The latest record of a transactional id is its whole state. Key and value are Kafka's: key version 0; value version
1, which is flexible, and whose tagged fields we all write (Kafka leaves some out and forgets a rotation of the
producer id with them, KAFKA-20310). Version 0 values are read, too.

Tagged fields of our own stand far from the numbers that Kafka hands out; Kafka passes over tags that it does not
know. Ours say what Kafka forgets:

    10000  commit_sequence       i64   the commit's number (g); not written if there is none
    10001  last_producer_epoch   i16   the epoch before the current one, if its owner may ask again; always written
    10002  transaction_epoch     i16   the epoch of the records, once their transaction is decided and producer_epoch
                                       has become that of the markers
    10003  ends                  for each partition, in the order of the partitions field: i32 leader epoch, i64 end
                                 offset of the partition when the transaction was decided
    10004  settled_epoch         i32   leader epoch; what the producer began before it under the same producer epoch
                                       is over; not written if there is none

Tags that we do not know are kept with the value and written back when it is written again unchanged.

A second kind of key is ours alone (i16 10000 where Kafka has the key's version, then the group's name): its value
says what belongs to the whole transaction group. Kafka skips kinds of keys that it does not know.

    i16 version (0) · i64 producer_ids_end · i64 commit_sequence_next

Key kind 10001 is a joint commit's key (`joint.records`). 10002 to 10099 are kept free for what else a group must
remember.

Format: docs/formats.md, "Commit log".  Source: Kafka's TransactionLogKey and TransactionLogValue; KIP-890, KIP-915,
KIP-939.
"""

import struct
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from stablelog.coordinators.transactions.log_ends import NO_ENDS, LogEnds, in_order
from stablelog.coordinators.transactions.states import State
from stablelog.errors import Corrupt, refuse_newer
from stablelog.types import TopicPartition
from stablelog.varint import encode_uvarint
from stablelog.wire.extension.children import JointName

Record = tuple[bytes, bytes | None]

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIME: Final = -1
TWO_PHASE_TIMEOUT_MS: Final = 2**31 - 1  # Kafka's sign of a two-phase transaction: it has no timeout

TRANSACTION_KIND: Final = 0
GROUP_KIND: Final = 10_000
JOINT_KIND: Final = 10_001
OWN_KINDS: Final = range(GROUP_KIND, 10_100)
VALUE_VERSION: Final = 1
TRANSACTION_VALUE: Final = "the state of a transactional id"
GROUP_STATE_VALUE: Final = "the state of a transaction group"
GROUP_VALUE_VERSION: Final = 0

PREVIOUS_PRODUCER_ID_TAG: Final = 0
NEXT_PRODUCER_ID_TAG: Final = 1
TRANSACTION_VERSION_TAG: Final = 2
NEXT_PRODUCER_EPOCH_TAG: Final = 3
COMMIT_SEQUENCE_TAG: Final = 10_000
LAST_EPOCH_TAG: Final = 10_001
TRANSACTION_EPOCH_TAG: Final = 10_002
ENDS_TAG: Final = 10_003
SETTLED_EPOCH_TAG: Final = 10_004

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
HEAD: Final = struct.Struct(
    ">"
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # timeout_ms
    "b"  # state
)
TIMES: Final = struct.Struct(
    ">"
    "q"  # update_ms
    "q"  # start_ms
)
IDLE_HEAD: Final = struct.Struct(
    ">"
    "h"  # version: 1
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # timeout_ms
    "b"  # state
    "B"  # no partitions: 0 (null) or 1 (none)
    "q"  # update_ms
)
GROUP_VALUE: Final = struct.Struct(
    ">"
    "h"  # version: always 0
    "q"  # producer_ids_end
    "q"  # commit_sequence_next
)


class Identity(NamedTuple):
    """What a producer shows: its id and its epoch."""

    producer_id: int
    producer_epoch: int


class Transaction(NamedTuple):
    """The state of a transactional id, as its latest record has it.

    Attributes:
        producer_id: under which the transaction's records are written.
        producer_epoch: of those records; once decided, the epoch of the markers.
        timeout_ms: how long a transaction may be open; `TWO_PHASE_TIMEOUT_MS` if as long as it likes.
        state: see `State`.
        partitions: what the transaction has written to, or may have. Empty once it is complete.
        update_ms: when this record was made.
        start_ms: when the transaction began; -1 if the id never had one since its producer came.
        previous_producer_id: with `last_producer_epoch`, the identity before the current one.
        last_producer_epoch: -1 if whoever had it must not get hold of the current one by asking again.
        next_producer_id: the client's, where it is not `producer_id`; -1 otherwise. Where an open transaction was
            kept for a successor (KIP-939) the successor has this id; where the epochs ran out, the next
            transaction will.
        next_producer_epoch: of `next_producer_id`; -1 means 0.
        transaction_version: the producer's dialect: 0 and 1 the first, 2 the second.
        commit_sequence: number of the commit (g); -1 for all that is not a commit.
        transaction_epoch: once decided, the epoch of the transaction's records; -1 otherwise.
        ends: where the partitions ended at the decision, for decisions that leave the producer's epoch as it is; in the
            order of `in_order`.
        settled_epoch: what the producer began with the same epoch, in partitions that then had a lower leader epoch
            than this, is over; -1 if there can be no such thing. See `transactions.recovery`.
        unknown_tags: tagged fields of other versions.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition] = frozenset()
    update_ms: int = NO_TIME
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_EPOCH
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    transaction_version: int = 0
    commit_sequence: int = NO_SEQUENCE
    transaction_epoch: int = NO_EPOCH
    ends: LogEnds = NO_ENDS
    settled_epoch: int = NO_EPOCH
    unknown_tags: tuple[tuple[int, bytes], ...] = ()

    @property
    def client(self) -> Identity:
        """What the producer that holds the id now, or will once its last request is answered, has to show."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return Identity(self.producer_id, self.producer_epoch)
        return Identity(self.next_producer_id, max(self.next_producer_epoch, 0))

    @property
    def predecessor(self) -> Identity:
        """What the same producer had before; its epoch is -1 if it may not ask again."""
        return Identity(self.previous_producer_id, self.last_producer_epoch)

    @property
    def decided_under(self) -> int:
        """The leader epoch under which it was decided, if the decision left the producer's epoch as it is; or -1."""
        return self.ends.leader_epoch if self.ends else NO_EPOCH

    @property
    def lacks_ends(self) -> bool:
        """Whether the decision keeps the epoch of its transaction and does not say where the partitions ended.

        Only Apache Kafka writes such decisions. The producer's next transaction has the same id and epoch, so only
        the order of the records in the log tells which one a partition holds: see `transactions.recovery`.
        """
        return self.state.is_decided and self.transaction_epoch == self.producer_epoch and not self.ends

    @property
    def latest_ms(self) -> int:
        """The later one of its times."""
        return max(self.start_ms, self.update_ms)

    def clamped(self, now_ms: int) -> "Transaction":
        """The same, with times after `now_ms` made into `now_ms`."""
        return self._replace(start_ms=min(self.start_ms, now_ms), update_ms=min(self.update_ms, now_ms))

    @property
    def is_two_phase(self) -> bool:
        """Whether its transactions may outlive their producer, and are never timed out."""
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    @property
    def is_kept(self) -> bool:
        """Whether the open transaction is a predecessor's, kept to be decided and not to be added to."""
        return self.state is State.ONGOING and self.next_producer_id != NO_PRODUCER_ID


class TransactionKey(NamedTuple):
    """The key of a transactional id's state."""

    transactional_id: str


class GroupKey(NamedTuple):
    """The key of what belongs to the whole transaction group."""

    group: str


class JointKey(NamedTuple):
    """The key of what is remembered of a joint commit's key."""

    name: JointName


class GroupState(NamedTuple):
    """What belongs to the whole transaction group."""

    producer_ids_end: int
    commit_sequence_next: int


# -- writing --------------------------------------------------------------------------------------------------------


def transaction_key(transactional_id: str) -> bytes:
    """The key of a transactional id's state."""
    return _key(TRANSACTION_KIND, transactional_id)


def group_key(group: str) -> bytes:
    """The key of what belongs to the whole transaction group."""
    return _key(GROUP_KIND, group)


def joint_key(group: str, key: str) -> bytes:
    """The key of what is remembered of a joint commit's key."""
    return _key(JOINT_KIND, group) + string(key)


def _key(kind: int, name: str) -> bytes:
    return INT16.pack(kind) + string(name)


def string(text: str) -> bytes:
    """A text with its size before it."""
    encoded = text.encode()
    return INT16.pack(len(encoded)) + encoded


def encode_group(state: GroupState) -> bytes:
    """The value under a group's key."""
    return GROUP_VALUE.pack(GROUP_VALUE_VERSION, *state)


_VERSION: Final = INT16.pack(VALUE_VERSION)


def encode_transaction(txn: Transaction) -> bytes:
    """The value under a transactional id's key, in version 1."""
    partitions = txn.ends.partitions or in_order(txn.partitions)
    topics = [
        (topic, [index for _, index in those]) for topic, those in groupby(partitions, key=itemgetter(0))
    ]
    parts = [_VERSION, HEAD.pack(txn.producer_id, txn.producer_epoch, txn.timeout_ms, txn.state)]
    if txn.state is State.EMPTY:
        assert not txn.partitions
        parts.append(encode_uvarint(0))  # null, as Kafka writes it
    else:
        parts.append(encode_uvarint(len(topics) + 1))
        for topic, indexes in topics:
            encoded = topic.encode()
            parts += (
                encode_uvarint(len(encoded) + 1),
                encoded,
                encode_uvarint(len(indexes) + 1),
                struct.pack(f">{len(indexes)}ix", *indexes),  # and no tagged fields
            )
    parts.append(TIMES.pack(txn.update_ms, txn.start_ms))
    fields = _tagged_fields(txn)
    parts.append(encode_uvarint(len(fields)))
    for tag, content in fields:
        parts += (encode_uvarint(tag), encode_uvarint(len(content)), content)
    return b"".join(parts)


def _tagged_fields(txn: Transaction) -> list[tuple[int, bytes]]:
    """The tagged fields with their tags, in the order in which they are written."""
    fields: list[tuple[int, bytes]] = []
    if txn.previous_producer_id != NO_PRODUCER_ID:
        fields.append((PREVIOUS_PRODUCER_ID_TAG, INT64.pack(txn.previous_producer_id)))
    if txn.next_producer_id != NO_PRODUCER_ID:
        fields.append((NEXT_PRODUCER_ID_TAG, INT64.pack(txn.next_producer_id)))
    if txn.transaction_version != 0:
        fields.append((TRANSACTION_VERSION_TAG, INT16.pack(txn.transaction_version)))
    if txn.next_producer_epoch != NO_EPOCH:
        fields.append((NEXT_PRODUCER_EPOCH_TAG, INT16.pack(txn.next_producer_epoch)))
    if txn.commit_sequence != NO_SEQUENCE:
        fields.append((COMMIT_SEQUENCE_TAG, INT64.pack(txn.commit_sequence)))
    fields.append((LAST_EPOCH_TAG, INT16.pack(txn.last_producer_epoch)))
    if txn.transaction_epoch != NO_EPOCH:
        fields.append((TRANSACTION_EPOCH_TAG, INT16.pack(txn.transaction_epoch)))
    if txn.ends:
        assert txn.partitions == set(txn.ends.partitions)
        fields.append((ENDS_TAG, txn.ends.content))
    if txn.settled_epoch != NO_EPOCH:
        fields.append((SETTLED_EPOCH_TAG, INT32.pack(txn.settled_epoch)))
    if txn.unknown_tags:
        fields = sorted([*fields, *txn.unknown_tags])  # tags stand in rising order
    return fields


# -- reading --------------------------------------------------------------------------------------------------------


def check_kind(kind: int) -> None:
    """Refuse a kind of key that is kept for later releases: what they remember under it must not be passed over.

    Raises:
        NewerFormat: a later release has written it.
    """
    if kind in OWN_KINDS:
        refuse_newer("a record whose key is", kind, JOINT_KIND)


def read_key(key: bytes) -> TransactionKey | GroupKey | JointKey | None:
    """What a record is about; None if it is of a kind that we do not know, and skip.

    Raises:
        NewerFormat: it is of a kind of our own that only a later release knows.
        Corrupt: the key is cut short or is no text.
    """
    reader = FieldReader(key, "key")
    kind = reader.int16()
    check_kind(kind)
    if kind == TRANSACTION_KIND:
        return TransactionKey(reader.text(reader.int16()))
    if kind == GROUP_KIND:
        return GroupKey(reader.text(reader.int16()))
    if kind == JOINT_KIND:
        return JointKey(JointName(reader.text(reader.int16()), reader.text(reader.int16())))
    return None


def decode_group(value: bytes) -> GroupState:
    """The value under a group's key. More fields may follow ours.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: the value is cut short.
    """
    if len(value) < GROUP_VALUE.size:
        raise Corrupt(
            f"commit log: a group's value has {len(value)} bytes, at least {GROUP_VALUE.size} are expected"
        )
    version, producer_ids_end, commit_sequence_next = GROUP_VALUE.unpack_from(value)
    refuse_newer(GROUP_STATE_VALUE, version, GROUP_VALUE_VERSION)
    return GroupState(producer_ids_end, commit_sequence_next)


class IdleHead(NamedTuple):
    """What `read_idle_head` reads: see `Transaction`."""

    producer_id: int
    state: State
    update_ms: int


def read_idle_head(value: bytes) -> IdleHead:
    """Some fields of the value of a transactional id without partitions, in version 1. Does not look at the rest."""
    version, producer_id, _, _, state, partitions, update_ms = IDLE_HEAD.unpack_from(value)
    assert version == 1
    assert partitions <= 1
    return IdleHead(producer_id, State(state), update_ms)


def decode_transaction(value: bytes) -> Transaction:
    """The value under a transactional id's key.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: the value is cut short, of a state that we do not know, or makes no sense.
    """
    reader = FieldReader(value, "value")
    version = reader.int16()
    refuse_newer(TRANSACTION_VALUE, version, VALUE_VERSION)
    if version not in (0, VALUE_VERSION):
        raise Corrupt(f"commit log: a value of version {version}; 0 and 1 can be read")
    flexible = version >= 1
    producer_id, producer_epoch, timeout_ms, number = HEAD.unpack(reader.take(HEAD.size))
    try:
        state = State(number)
    except ValueError:
        raise Corrupt(f"commit log: a value with transaction state {number}; 0 to 5 are known") from None
    partitions = reader.partitions(flexible=flexible)
    update_ms, start_ms = TIMES.unpack(reader.take(TIMES.size))
    tags = reader.tags() if flexible else {}
    reader.done()

    def int64(tag: int, default: int) -> int:
        content = tags.pop(tag, None)
        return default if content is None else FieldReader(content, f"tag {tag}").int64()

    def int16(tag: int, default: int) -> int:
        content = tags.pop(tag, None)
        return default if content is None else FieldReader(content, f"tag {tag}").int16()

    def int32(tag: int, default: int) -> int:
        content = tags.pop(tag, None)
        return default if content is None else FieldReader(content, f"tag {tag}").int32()

    transaction_version = int16(TRANSACTION_VERSION_TAG, 0)
    previous_producer_id = int64(PREVIOUS_PRODUCER_ID_TAG, NO_PRODUCER_ID)
    transaction_epoch = int16(TRANSACTION_EPOCH_TAG, NO_EPOCH)
    if LAST_EPOCH_TAG in tags:
        last_producer_epoch = int16(LAST_EPOCH_TAG, NO_EPOCH)
    else:  # Kafka wrote it
        previous_producer_id, last_producer_epoch = _guess_predecessor(
            Identity(producer_id, producer_epoch), previous_producer_id, state, transaction_version
        )
        if state.is_decided:
            transaction_epoch = producer_epoch - 1 if transaction_version >= 2 else producer_epoch
    return Transaction(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        update_ms=update_ms,
        start_ms=start_ms,
        previous_producer_id=previous_producer_id,
        last_producer_epoch=last_producer_epoch,
        next_producer_id=int64(NEXT_PRODUCER_ID_TAG, NO_PRODUCER_ID),
        next_producer_epoch=int16(NEXT_PRODUCER_EPOCH_TAG, NO_EPOCH),
        transaction_version=transaction_version,
        commit_sequence=int64(COMMIT_SEQUENCE_TAG, NO_SEQUENCE),
        transaction_epoch=transaction_epoch,
        ends=LogEnds(partitions, ends) if (ends := tags.pop(ENDS_TAG, b"")) else NO_ENDS,
        settled_epoch=int32(SETTLED_EPOCH_TAG, NO_EPOCH),
        unknown_tags=tuple(tags.items()),
    )


def _guess_predecessor(
    current: Identity, previous_producer_id: int, state: State, transaction_version: int
) -> tuple[int, int]:
    """The identity before, for a value that Kafka wrote: it does not keep the epoch, but goes by the same rules."""
    if transaction_version < 2 or not (state.is_decided or state.is_complete):
        return previous_producer_id, NO_EPOCH
    if current.producer_epoch > 0:
        return current.producer_id, current.producer_epoch - 1
    return previous_producer_id, 2**15 - 2  # the epochs had run out


class FieldReader:
    """Takes fields off the front of a key or value.

    Every method but the first raises `Corrupt` where the bytes are not what is asked for.

    Args:
        content: the bytes.
        what: what they are, for the error.
    """

    def __init__(self, content: bytes, what: str) -> None:
        self._content = bytes(content)
        self._position = 0
        self._what = what

    def take(self, size: int) -> bytes:
        """So many bytes."""
        end = self._position + size
        if size < 0 or end > len(self._content):
            raise Corrupt(
                f"commit log: a {self._what} of {len(self._content)} bytes is cut short: "
                f"{size} bytes are expected at {self._position}"
            )
        taken = self._content[self._position : end]
        self._position = end
        return taken

    def done(self) -> None:
        """Nothing may be left."""
        if self._position != len(self._content):
            raise Corrupt(
                f"commit log: {len(self._content) - self._position} bytes too many after a {self._what}"
            )

    def int16(self) -> int:
        """An int16."""
        number: int
        (number,) = INT16.unpack(self.take(INT16.size))
        return number

    def int32(self) -> int:
        """An int32."""
        number: int
        (number,) = INT32.unpack(self.take(INT32.size))
        return number

    def int64(self) -> int:
        """An int64."""
        number: int
        (number,) = INT64.unpack(self.take(INT64.size))
        return number

    def varint(self) -> int:
        """An unsigned varint of up to 32 bits."""
        number = 0
        for place in range(5):
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return number
        raise Corrupt(f"commit log: a varint of more than 5 bytes in a {self._what}")

    def text(self, size: int) -> str:
        """A text of so many bytes."""
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise Corrupt(f"commit log: a {self._what} holds a name that is not UTF-8: {error}") from None

    def count(self, *, flexible: bool) -> int:
        """The length of an array; -1 if it is null."""
        return self.varint() - 1 if flexible else self.int32()

    def partitions(self, *, flexible: bool) -> list[TopicPartition]:
        """Partitions, grouped by topic."""
        found: list[TopicPartition] = []
        for _ in range(self.count(flexible=flexible)):
            topic = self.text(self.varint() - 1 if flexible else self.int16())
            indexes = self.count(flexible=flexible)
            content = self.take(4 * indexes)
            found += [(topic, index) for (index,) in INT32.iter_unpack(content)]
            if flexible:
                self.tags()
        return found

    def tags(self) -> dict[int, bytes]:
        """Tagged fields, undecoded."""
        found: dict[int, bytes] = {}
        for _ in range(self.varint()):
            tag = self.varint()
            found[tag] = self.take(self.varint())
        return found
