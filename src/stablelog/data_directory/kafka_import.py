"""Takeover of a data directory of Apache Kafka: finds its topics by the names of its directories.

A directory of stablelog without its `cluster.json` looks like a directory of Kafka. The broker recognises it by files
that only stablelog writes, and refuses it: the settings of its topics are lost, and so is whether readers get records
in offset order or in commit order. The broker would serve the topics wrongly.
"""

import logging
import uuid
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from stablelog.data_directory.catalog import CATALOG_FILE, ListedTopic
from stablelog.data_directory.kafka_metadata import METADATA_TOPIC, ControllerTopic, read_topics
from stablelog.data_directory.meta_properties import META_FILE, node_id_of
from stablelog.data_directory.names import partition_named
from stablelog.data_directory.registered_file import REGISTERED_FILES
from stablelog.env.disk import Disk
from stablelog.errors import DamageError
from stablelog.log.files.log_start import LOG_START_FILE
from stablelog.log.files.names import (
    COMMIT_SUFFIXES,
    FIRST_SEQUENCE_FILE,
    PRODUCERS,
    SUMMARY,
    VIEW_START_FILE,
    is_partition_file,
)
from stablelog.log.files.partition_metadata import read_partition_metadata

log = logging.getLogger(__name__)

OUR_SUFFIXES = (SUMMARY, PRODUCERS, *COMMIT_SUFFIXES)
OUR_NAMES = (LOG_START_FILE, VIEW_START_FILE, FIRST_SEQUENCE_FILE)
NAMED_MAX = 3
# If `meta.properties` has exactly these names and no comment, stablelog has written the file, not Kafka.
META_NAMES = {"version", "cluster.id", "node.id"}


def find_topics(disk: Disk, directory: Path) -> list[ListedTopic]:
    """Find the topics of a data directory that has no list of topics (`cluster.json`), with the settings that Kafka's
    controllers have recorded.

    If the directory has the controllers' log, the partition counts of the topics are taken from it. If one of these
    partitions has no directory, a warning is logged, and the partition will be offline.

    Raises:
        DamageError: the directory is a stablelog directory that has lost its list of topics; a directory is missing
            between those of a topic's partitions; or a file is damaged.
    """
    found = _find_partitions(disk, directory)
    if not found:
        return []
    _check_meta(disk, directory)
    known = read_topics(disk, directory)
    node_id = node_id_of(disk, directory)
    here = {
        name
        for name, topic in known.items()
        if topic.partitions and name != METADATA_TOPIC and (node_id is None or node_id in topic.nodes)
    }
    topics = []
    for name in sorted(found.keys() | here):
        partitions, topic = found.get(name, {}), known.get(name, ControllerTopic())
        known_count = max(topic.partitions, default=-1) + 1
        count = max(known_count, max(partitions, default=-1) + 1)
        _check_holes(directory, name, partitions.keys(), range(known_count, count))
        for index in range(known_count):
            if index not in partitions:
                log.warning(
                    "the directory %s is missing, although the metadata log of Apache Kafka (%s-0) names its "
                    "partition: the partition is offline. Restore the directory, or delete the topic",
                    directory / f"{name}-{index}",
                    METADATA_TOPIC,
                )
        ids = (*partitions.values(), topic.topic_id, uuid.uuid4())
        topic_id = next(one for one in ids if one is not None)
        topics.append(ListedTopic(name, topic_id, count, dict(topic.configs)))
    return topics


def _find_partitions(disk: Disk, directory: Path) -> dict[str, dict[int, uuid.UUID | None]]:
    """Find the partitions that have a directory with Kafka's files, by topic, with the topic ids in these files.

    Raises:
        DamageError: a directory is missing or belongs to stablelog: see `find_topics`.
    """
    found: dict[str, dict[int, uuid.UUID | None]] = {}
    for name in disk.list_dir(directory):
        partition, path = partition_named(name), directory / name
        if partition is None or partition[0] == METADATA_TOPIC:
            continue
        if not disk.exists(path):
            raise DamageError(f"{path} is a symbolic link to nothing. Restore its target, or remove the link")
        if not disk.is_dir(path):
            continue
        if not any(is_partition_file(file) for file in disk.list_dir(path)):
            log.warning(
                "%s is ignored: it has the name of a partition's directory, but no file of a partition", path
            )
            continue
        _check_is_kafkas(disk, path)
        topic, index = partition
        found.setdefault(topic, {})[index] = read_partition_metadata(disk, path)
    return found


def _check_holes(directory: Path, topic: str, partitions: Collection[int], wanted: range) -> None:
    """Raise DamageError if a topic has a hole: one of the partitions that it must have has no directory.

    Args:
        directory: the data directory.
        topic: the name of the topic.
        partitions: the numbers of the partitions that have a directory.
        wanted: the numbers of the partitions that must have one.
    """
    gone_count = len(wanted) - sum(index in wanted for index in partitions)
    if gone_count:
        missing = ", ".join(
            f"{directory / topic}-{index}"
            for index in islice((one for one in wanted if one not in partitions), NAMED_MAX)
        )
        more = f" and {gone_count - NAMED_MAX} more" if gone_count > NAMED_MAX else ""
        raise DamageError(
            f"directories of topic {topic} are missing: {missing}{more}. {topic}-{wanted[-1]} exists, "
            "so the partitions before it must exist, too. Restore the missing directories, or move "
            f"{topic}-{wanted[-1]} away if it is not a partition"
        )


def _check_is_kafkas(disk: Disk, partition: Path) -> None:
    """Check that a partition's directory is one of Kafka. Raise DamageError if it has a file that only stablelog
    writes: then this is a stablelog directory that has lost its list of topics.
    """
    for name in disk.list_dir(partition):
        if name in OUR_NAMES or name.endswith(OUR_SUFFIXES):
            raise _lost_list(partition.parent, partition / name)


def _check_meta(disk: Disk, directory: Path) -> None:
    """Raise DamageError if stablelog has written `meta.properties`: then this is a stablelog directory that has lost
    its list of topics.
    """
    path = directory / META_FILE
    if not disk.exists(path):
        return
    lines = disk.read_bytes(path).decode(errors="replace").splitlines()
    names = {line.partition("=")[0] for line in lines}
    has_controller = disk.is_dir(directory / f"{METADATA_TOPIC}-0")
    is_registered = any(kind.meta_line in lines for kind in REGISTERED_FILES)
    if is_registered or (names == META_NAMES and not has_controller):
        raise _lost_list(directory, path)


def _lost_list(directory: Path, witness: Path) -> DamageError:
    return DamageError(
        f"{directory / CATALOG_FILE} is missing, and {witness} shows that stablelog has written this directory. Without this "
        "list of topics, the order and the settings of the topics are unknown. Restore the file from a backup"
    )
