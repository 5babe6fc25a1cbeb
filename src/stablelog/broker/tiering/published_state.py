"""The state of a partition and its topic, such as the topic's settings, which each manifest publishes for readers and
for a restore. A change of this state needs a new manifest.
"""

from stablelog.broker.topics.topic import Topic
from stablelog.log.partition import Partition
from stablelog.tier.copy_rules import view_start_of
from stablelog.tier.published import Published
from stablelog.tier.remote_log import RemoteLog


def published_state(partition: Partition, topic: Topic, time_ms: int) -> Published:
    """Return the state of a partition and its topic for the next manifest."""
    return Published(
        partition.high_watermark,
        time_ms,
        topic.partition_count,
        dict(topic.configs),
        topic.topic_id,
        partition.index,
        partition.restored,
        view_start_of(partition),
    )


def has_new_start(partition: Partition, remote: RemoteLog) -> bool:
    """Return whether the log start offset has moved since the last manifest was published. If so, readers of the
    store, and a restore, would still get deleted records.
    """
    published = remote.manifest.published
    known = 0 if published is None else max(published.view_start, remote.manifest.log_start)
    return remote.has_new_start or (published is not None and view_start_of(partition) > known)


def has_new_settings(
    partition: Partition, topic: Topic, known: Published | None, *, is_routine: bool
) -> bool:
    """Return whether the settings or the partition count of the topic have changed since the last manifest, so that a
    restore would use old ones.

    The first partition of a topic publishes a manifest also if nothing was copied, so that a restore finds the topic.

    Args:
        partition: the partition.
        topic: its topic.
        known: the state in the last manifest; None if nothing was published.
        is_routine: whether the partition is a coordinator's log. A restore does not need to find the topic of such a
            log.
    """
    if known is None:
        return partition.index == 0 and not is_routine
    return (known.partition_count, known.configs) != (topic.partition_count, topic.configs)
