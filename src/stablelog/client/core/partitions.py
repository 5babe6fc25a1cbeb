"""Requests to the leaders of partitions: ListOffsets, OffsetForLeaderEpoch and Fetch."""

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.fetch_request import receive_fetch, send_fetch
from stablelog.client.core.steps import Steps
from stablelog.client.responses import RetriableError, check
from stablelog.client.topics import ListedOffset, epoch_request, offsets_request, read_offsets
from stablelog.errors import DamageError, OffsetOutOfRangeError
from stablelog.types import TopicPartition
from stablelog.wire.fetch import Fetched


def list_offsets(
    cluster: Cluster, specs: Mapping[TopicPartition, int], isolation: str = "read_committed"
) -> Steps[dict[TopicPartition, ListedOffset]]:
    """Ask the leaders for one offset of each partition: that of a timestamp, the start or the end.

    Args:
        cluster: the brokers.
        specs: which offset to find, by partition: EARLIEST, LATEST (the last stable offset for read_committed), another
            special value, or a timestamp in ms, which stands for the first record at or after it.
        isolation: read_committed or read_uncommitted.

    Returns:
        A result for each partition; offset -1 if all records are older than the timestamp.

    Raises:
        RefusedError: a partition does not exist, or the broker does not support a special timestamp.
        UnavailableError: no response within the deadline.
    """
    found: dict[TopicPartition, ListedOffset] = {}

    def attempt() -> Steps[dict[TopicPartition, ListedOffset]]:
        left = [target for target in specs if target not in found]
        for leader_id, targets in (yield from cluster.group_by_leader(left)).items():
            wanted = {target: specs[target] for target in targets}
            connection = yield from cluster.connection_to(leader_id)
            response = yield from connection.request_steps(offsets_request(wanted, isolation))
            listed, refused = read_offsets(response)
            found.update(listed)  # keep these offsets, even if the leader refuses another partition
            for (name, index), code in refused.items():
                check(code, f"the offsets of {name}-{index}")
            for name, index in wanted.keys() - found.keys():
                raise RetriableError(
                    f"the response of {connection.address} does not contain the offset of {name}-{index}"
                )
        return found

    return (yield from cluster.retrying("listing offsets", attempt))


def epoch_ends(
    cluster: Cluster, leader_epochs: Mapping[TopicPartition, int]
) -> Steps[dict[TopicPartition, tuple[int, int] | None]]:
    """Find for each partition the greatest leader epoch at or below a given one, and the offset at which it ends.

    Args:
        cluster: the brokers.
        leader_epochs: the given leader epoch of each partition.

    Returns:
        For each partition the leader epoch and its end offset. None if the partition has no epoch at or above the given
        one. If all epochs of the partition are above the given one: the given epoch, and the start offset of the
        partition's first epoch.

    Raises:
        RefusedError: a partition does not exist.
        UnavailableError: no response within the deadline.
    """
    ends: dict[TopicPartition, tuple[int, int] | None] = {}

    def attempt() -> Steps[None]:
        left = [target for target in leader_epochs if target not in ends]
        for leader_id, targets in (yield from cluster.group_by_leader(left)).items():
            connection = yield from cluster.connection_to(leader_id)
            request = epoch_request({target: leader_epochs[target] for target in targets})
            response = yield from connection.request_steps(request)
            for topic in response.topics:
                for found in topic.partitions:
                    check(found.error_code, f"the leader epochs of {topic.topic}-{found.partition}")
                    is_known = found.end_offset >= 0
                    ends[topic.topic, int(found.partition)] = (
                        (int(found.leader_epoch), int(found.end_offset)) if is_known else None
                    )

    yield from cluster.retrying("asking for leader epochs", attempt)
    return ends


def epoch_end(
    cluster: Cluster, topic: str, partition: int, leader_epoch: int
) -> Steps[tuple[int, int] | None]:
    """Find in one partition the greatest leader epoch at or below `leader_epoch`, and return it with the offset at
    which it ends. Return None if the partition has no epoch at or above `leader_epoch`.

    Raises:
        RefusedError: the partition does not exist.
        UnavailableError: no response within the deadline.
    """
    return (yield from epoch_ends(cluster, {(topic, partition): leader_epoch}))[topic, partition]


def fetch(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    size_max: int = 8 << 20,
    isolation: str = "read_committed",
    *,
    wait_ms: int = 500,
    disk_attempts: int | None = None,
) -> Steps[Fetched]:
    """Fetch whole record batches as they are stored in the log, beginning with the batch that contains `offset`.

    Args:
        cluster: the brokers.
        topic: the topic's name.
        partition: the partition's index.
        offset: the first offset to read. Records before it in the same batch are returned, too.
        size_max: maximum of bytes, after which the last batch may be cut off. The first batch is always whole.
        isolation: read_committed ends at the last stable offset and lists the aborted transactions.
        wait_ms: how long the broker may wait for a record if there is none.
        disk_attempts: how many responses with a disk error are accepted before DamageError is raised; with None the
            request is repeated until the deadline.

    Raises:
        DamageError: the broker cannot read the records, because they are damaged or its disk fails.
        OffsetOutOfRangeError: the offset is not in the log.
        RefusedError: the partition does not exist.
        UnavailableError: no response within the deadline.
    """
    target = (topic, partition)
    left = disk_attempts

    def attempt() -> Steps[Fetched]:
        nonlocal left
        connection = yield from cluster.leader_connection(topic, partition)
        yield from send_fetch(connection, {target: offset}, size_max, isolation, wait_ms)
        response = yield from receive_fetch(connection)
        check(response.error, f"fetching from {topic}-{partition}")
        fetched = response.partitions.get(target)
        if fetched is None and response.throttle_ms:
            raise RetriableError(
                f"{connection.address} returns no records before {response.throttle_ms} ms have passed: the client is "
                "above its quota"
            )
        if fetched is None:
            raise RetriableError(f"the response of {connection.address} does not contain {topic}-{partition}")
        if fetched.error is ErrorCode.offset_out_of_range:
            raise OffsetOutOfRangeError(
                f"{topic}-{partition} has no offset {offset}: the record was deleted, or is not written yet"
            )
        if fetched.error is ErrorCode.kafka_storage_error and left is not None:
            left -= 1
            if left <= 0:
                raise DamageError(
                    f"{topic}-{partition}, offset {offset}: the broker cannot read the records, because "
                    "they are damaged or its disk fails. Restore the file that the broker's log output "
                    "names"
                )
        check(fetched.error, f"fetching {topic}-{partition} from {offset}")
        return fetched

    return (yield from cluster.retrying(f"fetching {topic}-{partition}", attempt))
