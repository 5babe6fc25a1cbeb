"""Questions to the broker that several commands ask, such as for the offsets of a topic. They are sent through
`client.admin`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.cli.output import fail
from stablelog.client.blocking.admin import Admin
from stablelog.client.blocking.cluster import EARLIEST, LATEST
from stablelog.client.topics import TopicDescription
from stablelog.errors import RefusedError, did_you_mean
from stablelog.types import TopicPartition

# The error codes of a topic that does not exist, also because no topic can have the name.
MISSING: Final = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)


def known_topic(admin: Admin, name: str) -> TopicDescription:
    """Return the metadata of an existing topic.

    Raises:
        UnavailableError: the topic does not exist, and the message suggests topics with similar names; or the user has no
            right to it. As in Kafka, a user without the right gets this error for missing topics, too.
    """
    try:
        return _described(admin, name)
    except RefusedError as refused:
        if refused.code not in MISSING:
            raise
        others = admin.topics.list(internal=True)
        fail(f"there is no topic {name!r}{did_you_mean(name, others, count_max=3)}")


def topic_of_records(admin: Admin, name: str) -> TopicDescription:
    """Return the metadata of a topic that records are written to or read from. A missing topic is an error, because the
    broker would create it with default settings, and the order of a topic cannot be changed.

    Raises:
        UnavailableError: the topic does not exist; the message names the command that creates it, and topics with
            similar names.
    """
    try:
        return _described(admin, name)
    except RefusedError as refused:
        is_missing = refused.code in MISSING
        similar = did_you_mean(name, admin.topics.list(internal=True), count_max=3) if is_missing else ""
        fail(f"{refused}{similar}")


def _described(admin: Admin, name: str) -> TopicDescription:
    """Return the metadata of a topic.

    Raises:
        UnavailableError: the user of the command has no right to describe the topic.
        RefusedError: the broker refuses the request for another reason.
    """
    try:
        return admin.topics.describe(name)
    except RefusedError as refused:
        if refused.code == ErrorCode.topic_authorization_failed:
            fail(f"this user is not authorized to DESCRIBE the topic {name!r}: ask for an ACL")
        raise


def chosen_partitions(topic: TopicDescription, partitions: Iterable[int] | None) -> list[int]:
    """Return the numbers of the chosen partitions of a topic, or of all its partitions if none are given.

    Raises:
        UnavailableError: a partition does not exist.
    """
    chosen = sorted(set(partitions or topic.partitions))
    for index in chosen:
        if index not in topic.partitions:
            fail(f"{topic.name} has no partition {index}, only 0 to {len(topic.partitions) - 1}")
    return chosen


def group_of_topic(admin: Admin, topic: str) -> str | None:
    """Return the name of the transaction group (topics whose commits have one order) of an existing topic; empty for
    the default group. Return None if the user may not describe the topic's settings. That is no error, because a
    producer can write without this right.

    Raises:
        RefusedError: the broker refuses the request for another reason.
    """
    try:
        return _topic_setting(admin, topic, "stablelog.group")
    except RefusedError as refused:
        if refused.code == ErrorCode.topic_authorization_failed:
            return None
        raise


def _topic_setting(admin: Admin, topic: str, name: str) -> str:
    """Return the value of a setting of a topic; empty on a broker without this setting, such as Apache Kafka."""
    found = admin.configs.describe("topic", topic, names=(name,))
    return next((config.value or "" for config in found.values()), "")


def held_back(
    admin: Admin,
    high_watermarks: Mapping[TopicPartition, int],
    last_stable: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int | None]:
    """Return how many offsets of each partition wait for the end of a transaction: those from the last stable offset to
    the high watermark, and 0 in a commit-ordered topic. None if the topic may be one, because the user may not read its
    settings.

    Args:
        admin: administers the cluster.
        high_watermarks: the high watermarks. Ask for them before the last stable offsets: records that are written in
            between would seem to wait.
        last_stable: the last stable offset of the same partitions.
    """
    found: dict[TopicPartition, int | None] = {
        target: max(0, end - last_stable[target]) for target, end in high_watermarks.items()
    }
    ordered = {
        topic: _is_commit_ordered(admin, topic)
        for topic in {topic for (topic, _), count in found.items() if count}
    }
    for target, count in found.items():
        if count and ordered[target[0]] is not False:
            found[target] = 0 if ordered[target[0]] else None
    return found


def _is_commit_ordered(admin: Admin, topic: str) -> bool | None:
    """Return whether a topic is in commit order; None if the user may not read its settings."""
    try:
        return _topic_setting(admin, topic, "stablelog.order") == "commit"
    except RefusedError:
        return None


def start_and_end(
    admin: Admin, partitions: Sequence[TopicPartition], isolation: str
) -> Mapping[TopicPartition, tuple[int, int]]:
    """Return (start, end) of each partition: its first offset and its end offset for readers with this isolation level."""
    starts = admin.topics.offsets(dict.fromkeys(partitions, EARLIEST), isolation)
    ends = end_offsets(admin, partitions, isolation)
    return {target: (starts[target].offset, ends[target]) for target in partitions}


def end_offsets(
    admin: Admin, partitions: Sequence[TopicPartition], isolation: str
) -> Mapping[TopicPartition, int]:
    """Return the end offset of each partition for readers with this isolation level."""
    ends = admin.topics.offsets(dict.fromkeys(partitions, LATEST), isolation)
    return {target: at.offset for target, at in ends.items()}
