"""Records of the commit log (`__transaction_state`).

The latest record of a transactional id holds its whole state. Key and value are Kafka's: key version 0; value version
1, which is flexible. All of Kafka's tagged fields are written. (Kafka leaves some out, and then forgets a change of the
producer id: KAFKA-20310.) Values of version 0 are read too.

stablelog's own tagged fields have numbers far from those that Kafka assigns. Kafka skips tags that it does not know.
The fields hold what Kafka does not keep:

    10000  commit_sequence       i64   the commit sequence; written only for a commit
    10001  last_producer_epoch   i16   the epoch that the producer had before its current one; a request with this epoch
                                       may repeat an earlier one, and is answered. -1 if such a request is refused. This
                                       field is in every value, also with -1
    10002  transaction_epoch     i16   the producer epoch of the transaction's records; written only after the decision
                                       to commit or to abort, because from then on Kafka's field producer_epoch has the
                                       epoch of the markers
    10003  ends                  for each partition, in the order of the partitions field: i32 leader epoch, i64 end
                                 offset of the partition when the transaction was decided; written only for a decision
                                 that keeps the producer epoch
    10004  settled_epoch         i32   a leader epoch (it grows with each start of the broker): all transactions of the
                                       producer with the present producer epoch that began under a lower leader epoch
                                       have ended, even if a partition lacks their markers; written only if this is
                                       known

Tagged fields of later releases, which this release does not know, are kept with the value. They are written back if the
value is written again unchanged.

A second kind of key is stablelog's own: int16 10000 in place of Kafka's key version, then the name of the transaction
group. Its value holds the state of the whole group, in version 0:

    i16 version · i64 producer_ids_end · i64 commit_sequence_next

Key kind 10001 is the key of a joint commit (`joint.records`). Kinds 10002 to 10099 are reserved for later releases.
Kafka skips kinds of keys that it does not know.

Format: docs/reference/formats.md, "Commit log".  Source: Kafka's TransactionLogKey and TransactionLogValue; KIP-890, KIP-915,
KIP-939.
"""

import struct
from operator import attrgetter
from typing import Any, Final, NamedTuple

from stablelog.coordinators.record_fields import (
    INT16,
    INT32,
    INT64,
    FieldReader,
    string,
    tagged_fields,
)
from stablelog.coordinators.transactions.log_ends import NO_ENDS, LogEnds
from stablelog.coordinators.transactions.partition_set import PartitionSet, encode_partitions
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TV2, TransactionMetadata
from stablelog.errors import refuse_unknown_version
from stablelog.types import TopicPartition
from stablelog.varint import encode_uvarint
from stablelog.wire.extension.children import JointName

TRANSACTION_KIND: Final = 0
GROUP_KIND: Final = 10_000
JOINT_KIND: Final = 10_001
OWN_KINDS: Final = range(GROUP_KIND, 10_100)
VALUE_VERSION: Final = 1
FLEXIBLE_VERSION: Final = 1
TRANSACTION_VALUE: Final = "the state of a transactional id"
GROUP_STATE_VALUE: Final = "the state of a transaction group"
GROUP_VALUE_VERSION: Final = 0

# By tag: the field of `TransactionMetadata` and its encoding. A field is written if it does not have its default value.
TAGS: Final = {
    0: ("previous_producer_id", INT64),
    1: ("next_producer_id", INT64),
    2: ("transaction_version", INT16),
    3: ("next_producer_epoch", INT16),
    10_000: ("commit_sequence", INT64),
    10_001: ("last_producer_epoch", INT16),
    10_002: ("transaction_epoch", INT16),
    10_004: ("settled_epoch", INT32),
}
LAST_EPOCH_TAG: Final = 10_001  # stablelog always writes this tag; Kafka does not.
ENDS_TAG: Final = 10_003

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
    "B"  # size of the array of partitions: 0 (null) or 1 (empty)
    "q"  # update_ms
)
GROUP_VALUE: Final = struct.Struct(
    ">"
    "q"  # producer_ids_end
    "q"  # commit_sequence_next
)


class TransactionKey(NamedTuple):
    """The key of the record with the state of a transactional id, in the commit log (the log of the coordinator)."""

    transactional_id: str


class TransactionGroupKey(NamedTuple):
    """The key of the record with the state of a whole transaction group (topics and producers with one order of
    commits).
    """

    group: str


class JointKey(NamedTuple):
    """The key of the commit log's record about a joint commit, which commits several transactions together: the
    transaction group, and the name that the client gives to its joint commits.
    """

    name: JointName


class TransactionGroupState(NamedTuple):
    """The state of a whole transaction group (topics and producers with one order of commits), as a record of its log
    contains it.

    Attributes:
        producer_ids_end: the group has reserved the producer ids below this one.
        commit_sequence_next: the number that the next commit of the group gets.
    """

    producer_ids_end: int
    commit_sequence_next: int


# -- writing --------------------------------------------------------------------------------------------------------


def transaction_key(transactional_id: str) -> bytes:
    """Encode the key of the record with the state of a transactional id."""
    return INT16.pack(TRANSACTION_KIND) + string(transactional_id)


def group_key(group: str) -> bytes:
    """Encode the key of the record with the state of a transaction group, the topics and producers that share one
    commit log.
    """
    return INT16.pack(GROUP_KIND) + string(group)


def joint_key(group: str, key: str) -> bytes:
    """Encode the key of the record with the state of a joint commit, which commits several transactions together."""
    return INT16.pack(JOINT_KIND) + string(group) + string(key)


def encode_group(state: TransactionGroupState) -> bytes:
    """Encode the state of a transaction group (topics and producers with one order of commits), as the value of its
    record in the coordinator's log.
    """
    return INT16.pack(GROUP_VALUE_VERSION) + GROUP_VALUE.pack(*state)


_VERSION: Final = INT16.pack(VALUE_VERSION)
_WRITTEN: Final = [
    (tag, layout, None if tag == LAST_EPOCH_TAG else TransactionMetadata._field_defaults[field])
    for tag, (field, layout) in TAGS.items()
]
_numbers_of: Final = attrgetter(*(field for field, _ in TAGS.values()))  # In the order of the tags.


def encode_transaction(txn: TransactionMetadata) -> bytes:
    """Encode the state of a transactional id, as the value of its record in the coordinator's log, in version 1."""
    parts = [_VERSION, HEAD.pack(txn.producer_id, txn.producer_epoch, txn.timeout_ms, txn.state)]
    if txn.state is TransactionState.EMPTY:
        assert not txn.partitions
        parts.append(encode_uvarint(0))  # No partitions: a null array, as Kafka writes it.
    elif not txn.ends or txn.ends.partitions is txn.partitions.in_order:
        parts.append(txn.partitions.encoded)
    else:  # The ends have the order of a record that was read.
        parts.append(encode_partitions(txn.ends.partitions))
    fields = [
        (tag, layout.pack(number))
        for (tag, layout, default), number in zip(_WRITTEN, _numbers_of(txn), strict=True)
        if number != default
    ]
    if txn.ends:
        named = txn.ends.partitions
        assert named is txn.partitions.in_order or txn.partitions == frozenset(named)
        fields.append((ENDS_TAG, txn.ends.content))
    parts += (TIMES.pack(txn.update_ms, txn.start_ms), tagged_fields(sorted([*fields, *txn.unknown_tags])))
    return b"".join(parts)


# -- reading --------------------------------------------------------------------------------------------------------


def check_kind(kind: int) -> None:
    """Raise an error if a kind of key (the int16 at its beginning) is reserved for later releases of stablelog: their
    records must not be skipped, as those of Kafka's unknown kinds are.

    Raises:
        UnknownFormatError: a later release has written the record.
    """
    if kind in OWN_KINDS:
        refuse_unknown_version("a record whose key is", kind, JOINT_KIND)


def read_key(key: bytes) -> TransactionKey | TransactionGroupKey | JointKey | None:
    """Read the key of a record of the commit log; None for a kind of key that the coordinator skips.

    Raises:
        UnknownFormatError: the kind is stablelog's own, and only a later release knows it.
        DamageError: the key is damaged.
    """
    reader = FieldReader(key, "the key")
    kind = reader.int16()
    check_kind(kind)
    if kind == TRANSACTION_KIND:
        return TransactionKey(reader.string())
    if kind == GROUP_KIND:
        return TransactionGroupKey(reader.string())
    return JointKey(JointName(reader.string(), reader.string())) if kind == JOINT_KIND else None


def decode_group(value: bytes) -> TransactionGroupState:
    """Read the state of a transaction group (topics and producers with one order of commits) from the value of its
    record. Further fields, which a later release may add at the end, are ignored.

    Raises:
        UnknownFormatError: a later release has written the record.
        DamageError: the value is damaged.
    """
    reader = FieldReader(value, GROUP_STATE_VALUE)
    reader.version(GROUP_VALUE_VERSION)
    return TransactionGroupState(*reader.unpack(GROUP_VALUE))


class IdleHead(NamedTuple):
    """The fields that `read_idle_head` reads from the record of an idle transactional id (one without an open
    transaction). The rest of the record is not decoded.
    """

    producer_id: int
    state: TransactionState
    update_ms: int


def read_idle_head(value: bytes) -> IdleHead:
    """Read the fields of `IdleHead` from the record value of a transactional id, of version 1 and without partitions.
    The rest is not decoded.
    """
    version, producer_id, _, _, state, partitions, update_ms = IDLE_HEAD.unpack_from(value)
    assert version == 1
    assert partitions <= 1
    return IdleHead(producer_id, TransactionState(state), update_ms)


def decode_transaction(value: bytes) -> TransactionMetadata:
    """Read the state of a transactional id from the value of its record.

    Raises:
        UnknownFormatError: a later release has written the record.
        DamageError: the value is damaged.
    """
    reader = FieldReader(value, TRANSACTION_VALUE)
    reader.version(VALUE_VERSION, FLEXIBLE_VERSION)
    producer_id, producer_epoch, timeout_ms, number = reader.unpack(HEAD)
    if number not in tuple(TransactionState):
        raise reader.damage(f"a transaction has the unknown state {number}; states 0 to 5 are known")
    partitions = _read_partitions(reader)
    update_ms, start_ms = reader.unpack(TIMES)
    tags = reader.tagged_fields()
    reader.check_end()
    ends = tags.pop(ENDS_TAG, b"")
    fields: dict[str, Any] = {
        field: FieldReader(tags.pop(tag), f"tag {tag}").unpack(layout)[0]
        for tag, (field, layout) in TAGS.items()
        if tag in tags
    }
    txn = TransactionMetadata(
        producer_id,
        producer_epoch,
        timeout_ms,
        TransactionState(number),
        PartitionSet(partitions),
        update_ms,
        start_ms,
        **fields,
        ends=LogEnds(partitions, ends) if ends else NO_ENDS,
        unknown_tags=tuple(tags.items()),
    )
    return txn if "last_producer_epoch" in fields else _with_kafkas_epochs(txn)


def _read_partitions(reader: FieldReader) -> list[TopicPartition]:
    """Read the partitions of a transaction, grouped by topic. A null array stands for no partitions."""
    found: list[TopicPartition] = []
    for _ in range(reader.count()):
        topic = reader.string()
        indexes = reader.read_bytes(INT32.size * reader.count())
        found += [(topic, index) for (index,) in INT32.iter_unpack(indexes)]
        reader.tagged_fields()
    return found


def _with_kafkas_epochs(txn: TransactionMetadata) -> TransactionMetadata:
    """Add the epochs that a value written by Kafka does not contain. These epochs follow from Kafka's rules."""
    has_own_epoch = txn.transaction_version >= TV2
    if txn.state.is_decided:
        txn = txn._replace(transaction_epoch=txn.producer_epoch - has_own_epoch)
    if not has_own_epoch or not (txn.state.is_decided or txn.state.is_complete):
        return txn
    if txn.producer_epoch > 0:
        return txn._replace(previous_producer_id=txn.producer_id, last_producer_epoch=txn.producer_epoch - 1)
    # The producer id has changed because its epochs had run out.
    return txn._replace(last_producer_epoch=2**15 - 2)
