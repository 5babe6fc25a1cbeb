"""The state of a partition and its topic, such as the topic's settings, which each manifest (list of the partition's
segments in the store) publishes for readers and for a restore. When this state changes, a new manifest is published.
"""

from stablelog.broker.topics.topic import Topic
from stablelog.log.partition import Partition
from stablelog.tier.copy_rules import view_start_of
from stablelog.tier.published import Published
from stablelog.tier.remote_log import RemoteLog


def published_state(partition: Partition, topic: Topic, time_ms: int) -> Published:
    """Return the state of a partition and its topic, such as the topic's settings, for the next manifest: the list of
    the partition's segments that is published in the store. `time_ms` is the time of the publication.
    """
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
    """Return whether the log start offset has moved since the last manifest, the list of a partition's segments in the
    store, was published. If so, readers of the store, and a restore, would still get deleted records.
    """
    published = remote.manifest.published
    known = 0 if published is None else max(published.view_start, remote.manifest.log_start)
    return remote.has_new_start or (published is not None and view_start_of(partition) > known)


def has_new_settings(
    partition: Partition, topic: Topic, known: Published | None, *, is_routine: bool
) -> bool:
    """Return whether the settings or the partition count of the topic have changed since the last manifest, the list of
    a partition's segments in the store. A restore would then use old ones.

    The result is also True for the first partition of a topic that has no manifest yet, so that a restore finds the
    topic even if nothing was copied.

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
