"""The lag of a consumer group in one partition: how many records its consumers have not read yet.

The *visible end* of a partition is the offset after the last committed record below the last stable offset. Consumers
never read the transaction markers and aborted records after it, so these do not count. Records after the last stable
offset wait for the end of a transaction; they are *held back*.
"""

from typing import Final

from stablelog.batch.aborted import AbortedFilter
from stablelog.batch.header import headers_in
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.types import TopicPartition

FETCH_SIZE: Final = 1 << 20
FETCHES_MAX: Final = 8  # maximum of fetches that look for the last record of a partition
OFFSETS_MAX: Final = (
    10_000  # above this lag, the visible end is not looked for: the last markers make no difference
)


def visible_end(cluster: BlockingCluster, target: TopicPartition, position: int, stable_offset: int) -> int:
    """Return the offset after the last record that a read-committed consumer gets from `position` on. If there is no
    such record, return `position`. If too many records would have to be read to find it, return the last stable offset.

    Args:
        cluster: the brokers.
        target: the partition.
        position: the offset of the next record that the consumer gets.
        stable_offset: the last stable offset of the partition.

    Raises:
        OffsetOutOfRangeError: the position is before the log's start or past its end.
        UnavailableError: the broker does not respond.
        RefusedError: the partition cannot be read.
        DamageError: a batch is damaged.
    """
    if not 0 < stable_offset - position <= OFFSETS_MAX:
        return stable_offset
    end, aborted = position, AbortedFilter()
    for _ in range(FETCHES_MAX):
        fetched = cluster.fetch(*target, position, FETCH_SIZE, "read_committed")
        aborted.add(fetched.aborted, position)
        reached = position
        for at, header in headers_in(fetched.records):
            reached = header.next_offset
            if header.is_control:
                aborted.process_control(fetched.records, at, header.producer_id, header.last_offset)
            elif not (
                header.is_transactional and aborted.drops_batch(header.producer_id, header.last_offset)
            ):
                end = reached
        if reached >= stable_offset or reached <= position:
            return end
        position = reached
    return stable_offset
