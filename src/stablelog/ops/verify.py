"""Verification of a data directory: its own files, and that every partition in its list of topics is there.

Nothing is written. `log.verify` and `commit_order.verify` verify the files of each partition.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from stablelog.broker.directory.dynamic_settings import DynamicSettings
from stablelog.broker.settings.config import BrokerConfig
from stablelog.commit_order.first_sequence import decode_first_sequences
from stablelog.coordinators.log_names import is_coordinator_log
from stablelog.data_directory.acl_file import acl_file
from stablelog.data_directory.catalog import CATALOG_FILE, Catalog, ListedTopic, read_catalog
from stablelog.data_directory.checkpoints import (
    CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE, check_clean_shutdown
from stablelog.data_directory.formats import newer_formats
from stablelog.data_directory.kafka_import import find_topics
from stablelog.data_directory.kafka_metadata import METADATA_TOPIC
from stablelog.data_directory.meta_properties import META_FILE, read_meta
from stablelog.data_directory.names import partition_directories, partition_named
from stablelog.data_directory.quota_file import quota_file
from stablelog.data_directory.registered_file import ACLS, QUOTAS, USERS
from stablelog.data_directory.settings_file import SETTINGS_FILE
from stablelog.data_directory.user_file import user_file
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, DiskError, UnknownFormatError, UsageError
from stablelog.log.files.log_start import LOG_START_FILE, read_log_start
from stablelog.log.files.names import FIRST_SEQUENCE_FILE, REMOTE_MANIFEST_FILE, VIEW_START_FILE, is_log
from stablelog.log.files.partition_metadata import METADATA_FILE, read_partition_metadata
from stablelog.log.recovery.damage import Expected
from stablelog.log.recovery.epoch_check import latest_epoch_of_all
from stablelog.log.verify import FileFinding
from stablelog.tier.local_state import LocalState


def is_partition_directory(disk: Disk, directory: Path) -> bool:
    """Whether a directory has the name of a partition (topic and number), and contains a log file."""
    return partition_named(directory.name) is not None and any(
        is_log(name) for name in disk.list_dir(directory)
    )


def is_data_directory(disk: Disk, directory: Path) -> bool:
    """Whether a directory is the data directory of a broker, of stablelog or of Apache Kafka."""
    return any(disk.exists(directory / name) for name in (CATALOG_FILE, META_FILE)) or any(
        is_partition_directory(disk, path) for path in partition_directories(disk, directory)
    )


def verify_data_directory(disk: Disk, directory: Path) -> Iterator[FileFinding]:
    """Find missing partitions and files of a data directory, and damaged files outside its partitions.

    A running broker may change the directory meanwhile, so a partition counts as missing only if the list of topics
    still names it.

    Args:
        disk: the disk of the directory.
        directory: the data directory.

    Yields:
        A finding for each missing or damaged file, and for each missing partition.
    """
    yield from until_unreadable(directory, _verify_formats(disk, directory))
    path = directory / CATALOG_FILE
    try:
        catalog = read_catalog(disk, directory)
    except (DamageError, DiskError, UnknownFormatError) as error:
        yield _finding(path, error)
        return
    yield from until_unreadable(directory, _verify_signs(disk, directory, catalog))
    if catalog is None:
        yield from until_unreadable(directory, _verify_kafkas(disk, directory))
        return
    try:
        DynamicSettings(disk, directory).load_into(BrokerConfig({}))
    except (DamageError, DiskError, UsageError, UnknownFormatError) as error:
        yield _finding(directory / SETTINGS_FILE, error)
    for kind, load in (
        (ACLS, acl_file(disk, directory).load),
        (USERS, user_file(disk, directory).load),
        (QUOTAS, quota_file(disk, directory).load),
    ):
        try:
            load()
        except (DamageError, DiskError, UnknownFormatError) as error:
            yield _finding(directory / kind.name, error)
    for name in CHECKPOINTS:
        try:
            read_offset_checkpoint(disk, directory / name)
        except (DamageError, DiskError, UnknownFormatError) as error:
            yield _finding(directory / name, error)
    for topic in catalog.topics:
        for index in range(topic.partition_count):
            partition = directory / f"{topic.name}-{index}"
            yield from until_unreadable(partition, _verify_partition(disk, partition, catalog, topic, index))


def until_unreadable(path: Path, findings: Iterator[FileFinding]) -> Iterator[FileFinding]:
    """Yield the findings of an iterator (each describes a damaged or missing file). If the iterator raises an error
    because a file cannot be read, yield a last finding about `path` that describes this error.
    """
    try:
        yield from findings
    except DiskError as error:
        yield FileFinding(path, f"cannot be verified: {error}")


def _verify_formats(disk: Disk, directory: Path) -> Iterator[FileFinding]:
    for path, newer in newer_formats(disk, directory):
        yield _finding(path, newer)


def _verify_kafkas(disk: Disk, directory: Path) -> Iterator[FileFinding]:
    """Yield a finding for each missing partition of a directory without a list of topics, such as one of Apache Kafka."""
    try:
        for topic in find_topics(disk, directory):  # raises if the directory has lost its list of topics
            for index in range(topic.partition_count):
                if not disk.is_dir(directory / f"{topic.name}-{index}"):
                    yield FileFinding(
                        directory / f"{topic.name}-{index}", f"is missing; {METADATA_TOPIC}-0 names it"
                    )
    except (DamageError, UnknownFormatError) as error:
        yield _finding(directory / CATALOG_FILE, error)


def _verify_partition(
    disk: Disk, partition: Path, catalog: Catalog, topic: ListedTopic, index: int
) -> Iterator[FileFinding]:
    """Yield a finding for each missing or damaged file of a partition. The files of its log and its commit indexes
    (which list the commits in a segment) are not checked here.
    """
    directory = partition.parent
    if not disk.is_dir(partition):
        if _is_listed(disk, directory, topic.name, index):
            yield FileFinding(partition, f"is missing; {CATALOG_FILE} names it")
        return
    try:
        found = read_partition_metadata(disk, partition)
        if found is not None and found != topic.topic_id:
            message = f"names the topic id {found}, but {topic.name} has the id {topic.topic_id}"
            yield FileFinding(partition / METADATA_FILE, message)
    except (DamageError, UnknownFormatError) as error:
        yield _finding(partition / METADATA_FILE, error)
    try:
        # Check the file with the start of the view here. `log.verify` checks only the file with the start of the log.
        read_log_start(disk, partition / VIEW_START_FILE)
    except (DamageError, UnknownFormatError) as error:
        yield _finding(partition / VIEW_START_FILE, error)
    try:
        decode_first_sequences(disk.read_bytes(partition / FIRST_SEQUENCE_FILE))
    except FileNotFoundError:
        pass
    except DamageError as error:
        yield _finding(partition / FIRST_SEQUENCE_FILE, error)
    try:
        state = LocalState(disk, partition)
        state.read_manifest()
        state.read_start()
    except (DamageError, UnknownFormatError) as error:
        yield _finding(partition / REMOTE_MANIFEST_FILE, error)
    for name in _start_files(topic) if catalog.established_epoch is not None else ():
        if not disk.exists(partition / name) and _is_listed(disk, directory, topic.name, index):
            yield FileFinding(partition / name, "is missing: it is unknown where the log begins")


def _finding(path: Path, error: DamageError | DiskError | UsageError | UnknownFormatError) -> FileFinding:
    """Return a finding for an error. The path at the beginning of the error's message is removed, because the finding
    has the path as a field of its own.
    """
    return FileFinding(path, str(error).removeprefix(f"{path}").lstrip(",: "))


def recovery_points(disk: Disk, directory: Path) -> dict[Path, int]:
    """Read the recovery points (the offsets up to which partitions were synced), by partition directory; empty if the
    file is missing or damaged.
    """
    with contextlib.suppress(DamageError, UnknownFormatError):
        found = read_offset_checkpoint(disk, directory / RECOVERY_POINT_CHECKPOINT)
        return {directory / f"{topic}-{index}": offset for (topic, index), offset in found.items()}
    return {}


def last_leader_epoch(disk: Disk, directory: Path) -> int:
    """Return the leader epoch of the last start of the broker: the greatest one in the list of topics and in the logs;
    0 if there is none.
    """
    catalog = _catalog_if_whole(disk, directory)
    known = 0 if catalog is None else catalog.leader_epoch
    return latest_epoch_of_all(disk, partition_directories(disk, directory), known)


def expectations(disk: Disk, directory: Path) -> dict[Path, Expected]:
    """Read what a data directory records about each log, such as its recovery point (the offset up to which it was
    synced), by partition directory. A verification expects to find this in the log. Files that cannot be read are
    skipped.
    """
    ends = recovery_points(disk, directory)
    catalog = _catalog_if_whole(disk, directory)
    epochs = {}
    start_files: dict[Path, frozenset[str]] = {}
    if catalog is not None and catalog.established_epoch is not None:
        leader_epoch = last_leader_epoch(disk, directory)
        epochs = {"leader_epoch": leader_epoch, "gapless_epoch": catalog.established_epoch}
        start_files = {
            directory / f"{topic.name}-{index}": frozenset(_start_files(topic))
            for topic in catalog.topics
            for index in range(topic.partition_count)
        }
    return {
        path: Expected(
            recovery_point=ends.get(path, 0),
            start_files=start_files.get(path, frozenset()),
            is_read_whole=is_coordinator_log(path.name.rpartition("-")[0]),
            **epochs,
        )
        for path in partition_directories(disk, directory)
    }


def _catalog_if_whole(disk: Disk, directory: Path) -> Catalog | None:
    """Read and return the list of topics; None if it is missing or damaged."""
    with contextlib.suppress(DamageError, UnknownFormatError):
        return read_catalog(disk, directory)
    return None


def _start_files(topic: ListedTopic) -> list[str]:
    """Return the names of the files that each partition of a topic must have: those that record at which offset the log
    begins and, in a commit-ordered topic, at which position in commit order.
    """
    return [LOG_START_FILE, VIEW_START_FILE] if topic.is_commit_ordered else [LOG_START_FILE]


def _is_listed(disk: Disk, directory: Path, topic: str, index: int) -> bool:
    """Whether the list of topics still names a partition: a running broker may have deleted the partition's topic since
    the verification began.
    """
    try:
        catalog = read_catalog(disk, directory)
    except (DamageError, UnknownFormatError):
        return True
    return catalog is None or any(
        known.name == topic and index < known.partition_count for known in catalog.topics
    )


def _verify_signs(disk: Disk, directory: Path, catalog: Catalog | None) -> Iterator[FileFinding]:
    """Yield a finding for each damage in `meta.properties` and in `.kafka_cleanshutdown` (the sign of a clean stop),
    which a start of the broker reads first. Files of a later release are ignored here, because another check reports
    them.
    """
    path = directory / META_FILE
    with contextlib.suppress(UnknownFormatError):
        try:
            meta = read_meta(disk, directory, catalog)
            if meta.fault is not None and catalog is not None:
                yield FileFinding(path, f"{meta.fault}; the next start writes it again")
        except DamageError as error:
            yield _finding(path, error)
    path = directory / CLEAN_SHUTDOWN_FILE
    with contextlib.suppress(UnknownFormatError, FileNotFoundError):
        try:
            check_clean_shutdown(disk, path)
        except DamageError as error:
            yield _finding(path, error)
