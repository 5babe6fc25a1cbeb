"""Whether a data directory is complete: its list of topics, and every partition that the list names.

Writes nothing. The files of each partition are proven by `log.verify` and `views.verify`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from stablelog.broker.catalog import CATALOG_FILE, Catalog, ListedTopic, read_catalog
from stablelog.broker.checkpoints import (
    FIRST_DIRTY_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from stablelog.broker.config import BrokerConfig, order_of
from stablelog.broker.directory_signs import (
    CLEAN_SHUTDOWN_FILE,
    META_FILE,
    check_clean_shutdown,
    read_meta,
)
from stablelog.broker.dynamic_settings import SETTINGS_FILE, DynamicSettings
from stablelog.broker.formats import newer_formats
from stablelog.broker.kafka_import import PARTITION_DIRECTORY, find_topics
from stablelog.broker.kafka_metadata import METADATA_TOPIC
from stablelog.broker.partition_metadata import METADATA_FILE, read_partition_metadata
from stablelog.broker.topic_names import is_internal
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, DiskError, InvalidConfig, NewerFormat
from stablelog.log.epoch_check import latest_epoch_of_all
from stablelog.log.log_start import LOG_START_FILE, read_log_start
from stablelog.log.names import VIEW_START_FILE, is_log
from stablelog.log.recovery.examine import Expected
from stablelog.log.verify import Finding

CHECKPOINTS = (
    LOG_START_CHECKPOINT,
    FIRST_DIRTY_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)


def is_partition_directory(disk: Disk, directory: Path) -> bool:
    """Whether a directory has the name of a partition and holds a log file."""
    return PARTITION_DIRECTORY.fullmatch(directory.name) is not None and any(
        is_log(name) for name in disk.list_dir(directory)
    )


def partition_directories(disk: Disk, directory: Path) -> list[Path]:
    """The directories of partitions in a data directory, sorted; those of deleted topics left out."""
    names = [name for name in disk.list_dir(directory) if PARTITION_DIRECTORY.fullmatch(name)]
    return [directory / name for name in names if disk.is_dir(directory / name)]


def is_data_directory(disk: Disk, directory: Path) -> bool:
    """Whether a directory is one of a broker, of stablelog or of Apache Kafka."""
    return any(disk.exists(directory / name) for name in (CATALOG_FILE, META_FILE)) or any(
        is_partition_directory(disk, path) for path in partition_directories(disk, directory)
    )


def verify_data_directory(disk: Disk, directory: Path) -> Iterator[Finding]:
    """Find what is missing from a data directory, or damaged in it beside the partitions.

    A broker that runs may change it meanwhile: a directory is missing only if the list still names it.

    Args:
        disk: where the directory lies.
        directory: the data directory.
    """
    yield from until_unreadable(directory, _verify_formats(disk, directory))
    path = directory / CATALOG_FILE
    try:
        catalog = read_catalog(disk, directory)
    except (Corrupt, DiskError, NewerFormat) as error:
        yield _finding(path, error)
        return
    yield from until_unreadable(directory, _verify_signs(disk, directory, catalog))
    if catalog is None:
        yield from until_unreadable(directory, _verify_kafkas(disk, directory))
        return
    try:
        DynamicSettings(disk, directory, directory / META_FILE).load_into(BrokerConfig({}))
    except (Corrupt, DiskError, InvalidConfig, NewerFormat) as error:
        yield _finding(directory / SETTINGS_FILE, error)
    for name in CHECKPOINTS:
        try:
            read_offset_checkpoint(disk, directory / name)
        except (Corrupt, DiskError, NewerFormat) as error:
            yield _finding(directory / name, error)
    for topic in catalog.topics:
        for index in range(topic.partition_count):
            partition = directory / f"{topic.name}-{index}"
            yield from until_unreadable(partition, _verify_partition(disk, partition, catalog, topic, index))


def until_unreadable(path: Path, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Findings, up to the first file of a directory that cannot be read, which is one more."""
    try:
        yield from findings
    except DiskError as error:
        yield Finding(path, f"cannot be verified: {error}")


def _verify_formats(disk: Disk, directory: Path) -> Iterator[Finding]:
    for path, newer in newer_formats(disk, directory):
        yield _finding(path, newer)


def _verify_kafkas(disk: Disk, directory: Path) -> Iterator[Finding]:
    """Find what is missing from a directory without a list of topics."""
    try:
        for topic in find_topics(disk, directory):  # refuses a directory that has lost its list
            for index in range(topic.partition_count):
                if not disk.is_dir(directory / f"{topic.name}-{index}"):
                    yield Finding(
                        directory / f"{topic.name}-{index}", f"is gone; {METADATA_TOPIC}-0 names it"
                    )
    except (Corrupt, NewerFormat) as error:
        yield _finding(directory / CATALOG_FILE, error)


def _verify_partition(
    disk: Disk, partition: Path, catalog: Catalog, topic: ListedTopic, index: int
) -> Iterator[Finding]:
    """Find what is missing from a partition, or damaged in it beside its log and its view."""
    directory = partition.parent
    if not disk.is_dir(partition):
        if _is_listed(disk, directory, topic.name, index):
            yield Finding(partition, f"is gone; {CATALOG_FILE} names it")
        return
    try:
        found = read_partition_metadata(disk, partition)
        if found is not None and found != topic.topic_id:
            message = f"names the topic id {found}; {topic.name} has {topic.topic_id}"
            yield Finding(partition / METADATA_FILE, message)
    except (Corrupt, NewerFormat) as error:
        yield _finding(partition / METADATA_FILE, error)
    try:
        read_log_start(disk, partition / VIEW_START_FILE)  # the other file is proven with the log
    except (Corrupt, NewerFormat) as error:
        yield _finding(partition / VIEW_START_FILE, error)
    for name in _start_files(topic) if catalog.established_epoch is not None else ():
        if not disk.exists(partition / name) and _is_listed(disk, directory, topic.name, index):
            yield Finding(partition / name, "is gone: where the log begins is not known")


def _finding(path: Path, error: Corrupt | DiskError | InvalidConfig | NewerFormat) -> Finding:
    """A finding from an error, whose message begins with the path."""
    return Finding(path, str(error).removeprefix(f"{path}").lstrip(",: "))


def recovery_points(disk: Disk, directory: Path) -> dict[Path, int]:
    """The synced ends that the broker has recorded, by partition directory; empty if the file is gone or damaged."""
    with contextlib.suppress(Corrupt, NewerFormat):
        found = read_offset_checkpoint(disk, directory / RECOVERY_POINT_CHECKPOINT)
        return {directory / f"{topic}-{index}": offset for (topic, index), offset in found.items()}
    return {}


def last_leader_epoch(disk: Disk, directory: Path) -> int:
    """The leader epoch of the last start, as the next start finds it: the greatest of the list and of the logs.

    Returns:
        0 if neither names one.
    """
    catalog = _catalog_if_whole(disk, directory)
    known = 0 if catalog is None else catalog.leader_epoch
    return latest_epoch_of_all(disk, partition_directories(disk, directory), known)


def expectations(disk: Disk, directory: Path) -> dict[Path, Expected]:
    """What a data directory says of its partitions, by partition directory; as far as its files can be read."""
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
            is_read_whole=is_internal(path.name.rpartition("-")[0]),
            **epochs,
        )
        for path in partition_directories(disk, directory)
    }


def _catalog_if_whole(disk: Disk, directory: Path) -> Catalog | None:
    """The list of topics; None if there is none, or it cannot be read."""
    with contextlib.suppress(Corrupt, NewerFormat):
        return read_catalog(disk, directory)
    return None


def _start_files(topic: ListedTopic) -> list[str]:
    """The files that say where a log of the topic begins, and its view; each partition has them."""
    return [LOG_START_FILE, VIEW_START_FILE] if order_of(topic.configs) == "commit" else [LOG_START_FILE]


def _is_listed(disk: Disk, directory: Path, topic: str, index: int) -> bool:
    """Whether the list names a partition now: a broker that runs may have deleted its topic meanwhile."""
    try:
        catalog = read_catalog(disk, directory)
    except (Corrupt, NewerFormat):
        return True
    return catalog is None or any(
        known.name == topic and index < known.partition_count for known in catalog.topics
    )


def _verify_signs(disk: Disk, directory: Path, catalog: Catalog | None) -> Iterator[Finding]:
    """Find what is wrong with the files that the start reads first. Those of a later release are found elsewhere."""
    path = directory / META_FILE
    with contextlib.suppress(NewerFormat):
        try:
            meta = read_meta(disk, directory, catalog)
            if meta.fault is not None and catalog is not None:
                yield Finding(path, f"{meta.fault}; the next start writes it again")
        except Corrupt as error:
            yield _finding(path, error)
    path = directory / CLEAN_SHUTDOWN_FILE
    with contextlib.suppress(NewerFormat, FileNotFoundError):
        try:
            check_clean_shutdown(disk, path)
        except Corrupt as error:
            yield _finding(path, error)
