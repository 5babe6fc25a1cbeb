"""For a restore: reads and checks what an object store has of a cluster whose disk is lost. Nothing is written."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from stablelog.batch.header import BatchHeader, crc_holds, headers_in
from stablelog.batch.records import decode_records
from stablelog.broker.topic_names import REMOTE_LOG_METADATA_TOPIC
from stablelog.coordinators.log_names import group_of_log, is_coordinator_log
from stablelog.coordinators.transactions.restored_transactions import CommitLog, Pair
from stablelog.data_directory.settings_file import Dynamic, decode_settings
from stablelog.env.disk import Buffer
from stablelog.errors import DamageError, ObjectMissingError, adding_path
from stablelog.log.files.names import REMOTE_PART_PREFIX
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.snapshots import decode_producers, decode_snapshot
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import INDEXES, LOG, RemotePartition
from stablelog.tier.prefix import Prefix
from stablelog.tier.published import Published
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.tier.restored_files import Stored
from stablelog.tier.segment_bytes import check_proof
from stablelog.types import ObjectRange, RangeProof

PayloadOf = Callable[[RemotePartition], bytes | None]


@dataclass(slots=True)
class StoredTopic:
    """A topic in the object store.

    Attributes:
        name: the name.
        partitions: what the store has of each partition with a manifest (the list of its segments in the store), by
            index.
        published: the state of the topic, such as its settings, as the newest of these manifests has it.
        logs: the contents of the copied log files, by partition and base offset, if the topic is the log of a
            coordinator; otherwise empty.
    """

    name: str
    partitions: dict[int, Stored]
    published: Published
    logs: dict[int, dict[int, bytes]] = field(default_factory=dict)


def all_partitions(prefix: Prefix) -> list[RemotePartition]:
    """Return all partitions in the store, in the order in which a restore takes over their manifests, the lists of
    their segments in the store: first topics, then the offsets logs, then the commit logs.

    When the manifests of a log are taken over, the lost broker, if it still runs, can copy nothing more from this log
    to the store. The commit logs come last, because the markers in the other logs need their decisions: with this
    order, no marker can be in the store without the decision that it depends on.
    """
    found = [one for topic in prefix.topics() for one in prefix.partitions(topic)]
    return sorted(found, key=lambda one: (group_of_log(one.topic) is not None, is_coordinator_log(one.topic)))


def read_topics(prefix: Prefix, cluster_id: str, payload_of: PayloadOf) -> list[StoredTopic]:
    """Read the topics in the store. If several topics had the same name, one after the other, only the last one is
    restored.

    Args:
        prefix: the prefix of the store, under which the broker kept all its objects.
        cluster_id: the id of the cluster that the prefix belongs to.
        payload_of: returns the payload (the bytes) of a partition's last manifest, the list of its segments in the
            store; None if there is none.

    Raises:
        StoreError: the store does not answer.
        UnknownFormatError: a later release has written an object.
        DamageError: an object is damaged or missing. The message names it.
    """
    by_topic: dict[tuple[str, bytes], dict[int, Stored]] = {}
    for partition in all_partitions(prefix):
        payload = None if partition.topic == REMOTE_LOG_METADATA_TOPIC else payload_of(partition)
        if payload is not None:
            stored = _read_partition(prefix, cluster_id, partition, payload)
            by_topic.setdefault((partition.topic, partition.topic_id.bytes), {})[partition.partition] = stored
    latest: dict[str, StoredTopic] = {}
    for (name, _), partitions in by_topic.items():
        topic = StoredTopic(name, partitions, _published(partitions))
        known = latest.get(name)
        if known is None or known.published.time_ms < topic.published.time_ms:
            latest[name] = topic
    for topic in latest.values():
        if is_coordinator_log(topic.name):
            topic.logs = {index: _read_logs(prefix, one) for index, one in topic.partitions.items()}
    return [latest[name] for name in sorted(latest)]


def read_commit_logs(topics: list[StoredTopic]) -> dict[str, CommitLog]:
    """Read the records of the commit logs, in which the transaction coordinators store their decisions, by transaction
    group.

    Raises:
        UnknownFormatError: a later release has written a record.
        DamageError: a record is damaged.
    """
    found: dict[str, CommitLog] = {}
    for topic in topics:
        group = group_of_log(topic.name)
        if group is None:
            continue
        log = found.setdefault(group, CommitLog(group))
        for index in sorted(topic.logs):
            for base, content in sorted(topic.logs[index].items()):
                with adding_path(f"{topic.name}-{index}, segment {base}"):
                    for position, header in headers_in(content):
                        if not header.is_control:
                            log.read_records(_pairs(content, position))
    return found


def read_settings(prefix: Prefix) -> Dynamic:
    """Read the dynamic settings that the last broker has copied to the store; empty if it has copied none.

    Raises:
        StoreError: the store does not answer.
        UnknownFormatError: a later release has written the object.
        DamageError: the object is damaged. The message names it.
    """
    found = prefix.last_settings()
    if found is None:
        return Dynamic({}, {})
    key, content = found
    with adding_path(key):
        try:
            return decode_settings(content)
        except DamageError as error:
            raise DamageError(f"{key} is damaged: {error}") from None


def _pairs(content: bytes, position: int) -> list[Pair]:
    records = decode_records(content, position)
    return [Pair(record.key, record.value) for record in records if record.key is not None]


def producers_of(stored: Stored, now_ms: int) -> ProducerTable | None:
    """Return the producer state (epochs, last sequence numbers, open transactions) at the end of the part of a
    partition that the store has; None if the store has no snapshot of it.

    Raises:
        UnknownFormatError: a later release has written the snapshot.
        DamageError: the snapshot is damaged.
    """
    files = stored.last_indexes
    if IndexKind.PRODUCERS in files:
        return decode_producers(bytes(files[IndexKind.PRODUCERS]))[0]
    if IndexKind.SNAPSHOT in files:
        return decode_snapshot(bytes(files[IndexKind.SNAPSHOT]), now_ms)
    return None


def _read_partition(prefix: Prefix, cluster_id: str, partition: RemotePartition, payload: bytes) -> Stored:
    try:
        with adding_path(partition.chain):
            manifest, contents = prefix.read_manifest(partition, payload)
    except DamageError as error:
        raise DamageError(f"the last manifest in {partition.chain} cannot be restored: {error}") from None
    if manifest.cluster_id != cluster_id:
        raise DamageError(
            f"the last manifest in {partition.chain} belongs to cluster {manifest.cluster_id}, "
            f"but the object store belongs to cluster {cluster_id}: nothing is restored"
        )
    parts = {f"{REMOTE_PART_PREFIX}{part_id.hex}": content for part_id, content in contents.items()}
    stored = Stored(partition, manifest, payload, parts, {})
    _check_objects(prefix, stored)
    return stored._replace(last_indexes=_last_indexes(prefix, stored))


def _check_objects(prefix: Prefix, stored: Stored) -> None:
    """Raise DamageError if an object that the manifest (the list of a partition's segments in the store) names is
    missing from the store, or has another size than the manifest says.
    """
    partition = stored.partition
    sizes = {one.key: one.size for one in prefix.store.list_after(partition.directory)}
    for row in stored.live:
        for kind in (LOG, INDEXES):
            key = partition.segment_key(row.base_offset, row.segment_id, kind)
            if key not in sizes:
                raise DamageError(f"{key} is missing, and the last manifest names it: restore the object")
            if kind == LOG and sizes[key] != row.size:
                raise DamageError(
                    f"{key} has {sizes[key]} bytes, but the last manifest (the list of segments) says "
                    f"{row.size}: restore the object"
                )


def _last_indexes(prefix: Prefix, stored: Stored) -> dict[IndexKind, Buffer]:
    if not stored.live:
        return {}
    row = stored.live[-1]
    key = stored.partition.segment_key(row.base_offset, row.segment_id, INDEXES)
    return row.indexes_in(_get_object(prefix, key), key)


def _get_object(prefix: Prefix, key: str) -> bytes:
    try:
        return prefix.store.get(key)
    except ObjectMissingError:
        raise DamageError(f"{key} is missing, and the last manifest names it: restore the object") from None


def _read_logs(prefix: Prefix, stored: Stored) -> dict[int, bytes]:
    """Load the log files of a coordinator's log, by base offset, and check their batches."""
    found = {}
    for row in stored.live:
        key = stored.partition.segment_key(row.base_offset, row.segment_id, LOG)
        content = _get_object(prefix, key)
        if row.summary is not None:
            wanted = ObjectRange(key, 0, row.size, RangeProof(row.summary.log_crc, 0))
            check_proof(content, wanted, prefix.store.url)
        _check_batches(content, row, key)
        found[row.base_offset] = content
    return found


def _check_batches(content: bytes, row: RemoteSegment, key: str) -> None:
    position, offset = 0, row.base_offset
    for at, header in headers_in(content):
        if at != position or header.base_offset < offset or not _is_whole_batch(content, at, header):
            break
        position, offset = at + header.size, header.next_offset
    if position != len(content) or position != row.size or offset > row.end_offset:
        raise DamageError(
            f"{key} is damaged at byte {position}: no whole batch with the next offset begins there"
        )


def _is_whole_batch(content: bytes, position: int, header: BatchHeader) -> bool:
    return position + header.size <= len(content) and crc_holds(content, position, header)


def _published(partitions: dict[int, Stored]) -> Published:
    said = [one.manifest.published for one in partitions.values()]
    return max([one for one in said if one is not None], key=attrgetter("time_ms"))


def empty_stored(partition: RemotePartition, cluster_id: str) -> Stored:
    """Return the state of a partition of which the store has nothing: an empty log without a manifest, the list of a
    partition's segments in the store.
    """
    return Stored(partition, Manifest(cluster_id), b"", {}, {})
