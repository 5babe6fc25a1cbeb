"""Decoder of the records in coordinators' logs into named fields, for the output of `stablelog inspect`.

The output is like that of Kafka's dump tool with `--transaction-log-decoder` and `--offsets-decoder`. It also has the
fields that only stablelog writes. Fields without a value, such as the id of a previous producer if there is none, are
left out.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from stablelog.coordinators.consumer_groups import records as group_records
from stablelog.coordinators.consumer_groups.classic_group import CONSUMER_PROTOCOL
from stablelog.coordinators.consumer_groups.consumer_protocol import records as consumer_records
from stablelog.coordinators.consumer_groups.consumer_protocol.model import Partitions, by_topic
from stablelog.coordinators.consumer_groups.consumer_protocol.records import ConsumerKey
from stablelog.coordinators.consumer_groups.records import GroupValue, MemberValue, OffsetKey
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC, group_of_log
from stablelog.coordinators.transactions import records as transaction_records
from stablelog.coordinators.transactions.joint.records import decode_joint
from stablelog.coordinators.transactions.records import JointKey, TransactionKey
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.types import TopicPartition

Fields = dict[str, Any]
DescribedRecord = tuple[Fields, Fields | str | None]
Describe = Callable[[bytes, bytes | None], DescribedRecord | None]

ABSENT = -1  # the value of missing ids, epochs, numbers and times


def describer_of(directory: str) -> Describe | None:
    """Return the function that decodes the records of a partition into named fields; None if the partition is not a
    coordinator's log.

    Args:
        directory: the name of the partition's directory.
    """
    topic, _, _ = directory.rpartition("-")
    if group_of_log(topic) is not None:
        return describe_commit_record
    return describe_offsets_record if topic == CONSUMER_OFFSETS_TOPIC else None


def describe_commit_record(key: bytes, value: bytes | None) -> DescribedRecord | None:
    """Decode key and value of a record of a commit log, in which a transaction coordinator stores its decisions, into
    named fields. A value of None is a tombstone. Return None for an unknown kind of record.
    """
    try:
        subject = transaction_records.read_key(key)
    except (DamageError, UnknownFormatError):
        return None
    if subject is None:
        return None
    if isinstance(subject, TransactionKey):
        named: Fields = {"transactional_id": subject.transactional_id}
        return named, _decoded(
            value, lambda content: _transaction(transaction_records.decode_transaction(content))
        )
    if isinstance(subject, JointKey):
        named = {"joint_commit": subject.name._asdict()}
        return named, _decoded(
            value, lambda content: _without_absent(dataclasses.asdict(decode_joint(content)))
        )
    named = {"transaction_group": subject.group}
    return named, _decoded(value, lambda content: transaction_records.decode_group(content)._asdict())


def describe_offsets_record(key: bytes, value: bytes | None) -> DescribedRecord | None:
    """Decode key and value of a record of the offsets log (`__consumer_offsets`) into named fields. A value of None is
    a tombstone. Return None for an unknown kind of record.
    """
    try:
        subject = group_records.read_key(key)
    except (DamageError, UnknownFormatError):
        return None
    if subject is None:
        return None
    if isinstance(subject, OffsetKey):
        named: Fields = {"group": subject.group_id, "partition": f"{subject.topic}-{subject.partition}"}
        return named, _decoded(
            value, lambda content: _without_absent(group_records.read_offset_value(content)._asdict())
        )
    if isinstance(subject, ConsumerKey):
        named = {"group": subject.group_id} | ({"member": subject.member_id} if subject.member_id else {})
        return named, _decoded(value, lambda content: _consumer_group(subject.kind, content))
    return {"group": subject.group_id}, _decoded(
        value, lambda content: _group(group_records.read_group_value(content))
    )


def _decoded(value: bytes | None, decode: Callable[[bytes], Fields]) -> Fields | str | None:
    if value is None:
        return None
    try:
        return decode(value)
    except (DamageError, UnknownFormatError) as error:
        return f"{error}: {value.hex()}"


def _without_absent(fields: Fields) -> Fields:
    return {
        name: content
        for name, content in fields.items()
        if content not in (ABSENT, "", ()) and content is not False
    }


def _transaction(txn: TransactionMetadata) -> Fields:
    fields = txn._asdict()
    fields["state"] = txn.state.label
    fields["timeout_ms"] = "never" if txn.is_two_phase else txn.timeout_ms
    fields["partitions"] = [_name(partition) for partition in sorted(txn.partitions)]
    fields["ends"] = {
        _name(partition): f"{end.end_offset} in leader epoch {end.leader_epoch}"
        for partition, end in sorted(txn.ends.items())
    } or ABSENT
    fields["unknown_tags"] = {tag: content.hex() for tag, content in txn.unknown_tags} or ABSENT
    return _without_absent(fields)


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _group(group: GroupValue) -> Fields:
    fields = group._asdict()
    is_consumer = group.protocol_type == CONSUMER_PROTOCOL
    fields["members"] = [_member(member, is_consumer=is_consumer) for member in group.members]
    return _without_absent(fields)


def _consumer_group(kind: int, content: bytes) -> Fields:
    match kind:
        case consumer_records.GROUP_EPOCH_KEY_VERSION:
            return consumer_records.read_group_epochs(content)._asdict()
        case consumer_records.TARGET_EPOCH_KEY_VERSION:
            return {"target_epoch": consumer_records.read_target_epoch(content)}
        case consumer_records.MEMBER_KEY_VERSION:
            fields = dataclasses.asdict(consumer_records.read_subscription(content))
            fields["topics"] = list(fields["topics"])
            return {name: content for name, content in fields.items() if content is not None}
        case consumer_records.TARGET_KEY_VERSION:
            return {"target": _by_topic_id(consumer_records.read_target(content))}
    current = consumer_records.read_current(content)
    return {
        "epoch": current.epoch,
        "previous_epoch": current.previous_epoch,
        "state": current.state.name.lower(),
        "assigned": _by_topic_id(current.assigned),
        "revoking": _by_topic_id(current.revoking),
    }


def _by_topic_id(partitions: Partitions) -> Fields:
    return {str(topic_id): indexes for topic_id, indexes in by_topic(partitions)}


def _member(member: MemberValue, *, is_consumer: bool) -> Fields:
    fields = member._asdict()
    subscribed = group_records.subscribed_topics(member.subscription) if is_consumer else None
    assigned = group_records.assigned_partitions(member.assignment) if is_consumer else None
    fields["subscription"] = member.subscription.hex() if subscribed is None else list(subscribed)
    fields["assignment"] = (
        member.assignment.hex()
        if assigned is None
        else [_name((topic, index)) for topic, indexes in assigned.items() for index in indexes]
    )
    return {name: content for name, content in fields.items() if content is not None}
