"""Taking over a data directory of Apache Kafka: its topics, from the names of its directories.

A directory of stablelog that has lost `cluster.json` looks like one of Kafka's. It is told apart by the files that
only stablelog writes, and refused: topics would be served with other settings and in another order.
"""

import logging
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from stablelog.broker.catalog import CATALOG_FILE, ListedTopic
from stablelog.broker.config import check_topic_configs
from stablelog.broker.dynamic_settings import META_LINE
from stablelog.broker.kafka_metadata import METADATA_TOPIC, read_topic_configs
from stablelog.broker.partition_metadata import read_partition_metadata
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, InvalidConfig
from stablelog.log.log_start import LOG_START_FILE
from stablelog.log.names import COMMIT_SUFFIXES, PRODUCERS, SUMMARY

log = logging.getLogger(__name__)

PARTITION_DIRECTORY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<index>0|[1-9][0-9]{0,9})")
OUR_SUFFIXES = (SUMMARY, PRODUCERS, *COMMIT_SUFFIXES)
OUR_NAMES = (LOG_START_FILE, "view-start-offset")
META_NAMES = {"version", "cluster.id", "node.id"}  # which, without a comment, is what stablelog writes


def find_topics(disk: Disk, directory: Path) -> list[ListedTopic]:
    """Find the topics of a data directory that has no list of topics, with the settings that Kafka's controllers had.

    Raises:
        Corrupt: the directory is one of stablelog that has lost its list, or a file in it is damaged.
    """
    found: dict[str, dict[int, uuid.UUID | None]] = {}
    for name in disk.list_dir(directory):
        match = PARTITION_DIRECTORY.fullmatch(name)
        if match and match["topic"] != METADATA_TOPIC and disk.is_dir(directory / name):
            _check_is_kafkas(disk, directory / name)
            topic_id = read_partition_metadata(disk, directory / name)
            found.setdefault(match["topic"], {})[int(match["index"])] = topic_id
    if found:
        _check_meta(disk, directory)
    known = read_topic_configs(disk, directory) if found else {}
    topics = []
    for name, partitions in found.items():
        topic_id = next((found_id for found_id in partitions.values() if found_id is not None), None)
        configs = adopted_configs(name, known.get(name, {}))
        log.info("found topic %s with %d partitions, %s", name, len(partitions), configs)
        topics.append(ListedTopic(name, topic_id or uuid.uuid4(), max(partitions) + 1, configs))
    return topics


def _check_is_kafkas(disk: Disk, partition: Path) -> None:
    """Raise Corrupt if a partition's directory holds a file that only stablelog writes."""
    for name in disk.list_dir(partition):
        if name in OUR_NAMES or name.endswith(OUR_SUFFIXES):
            raise _lost_list(partition.parent, partition / name)


def _check_meta(disk: Disk, directory: Path) -> None:
    """Raise Corrupt if `meta.properties` is one that stablelog has written."""
    path = directory / "meta.properties"
    if not disk.exists(path):
        return
    lines = disk.read_bytes(path).decode(errors="replace").splitlines()
    names = {line.partition("=")[0] for line in lines}
    has_controller = disk.is_dir(directory / f"{METADATA_TOPIC}-0")
    if META_LINE in lines or (names == META_NAMES and not has_controller):
        raise _lost_list(directory, path)


def _lost_list(directory: Path, witness: Path) -> Corrupt:
    return Corrupt(
        f"{directory / CATALOG_FILE} is gone, and {witness} says that stablelog has written this directory. Without the "
        "list the order of the topics and their settings are not known. Restore it from a backup"
    )


def adopted_configs(name: str, known: Mapping[str, str]) -> dict[str, str]:
    """The settings of a topic that is taken over: its own, as far as they are known, and otherwise to keep everything.

    What the defaults of its broker were is not known, and what retention deletes does not come back.
    """
    configs = {"retention.ms": "-1", "retention.bytes": "-1"}
    for setting, text in known.items():
        try:
            check_topic_configs({setting: text})
        except InvalidConfig as error:
            log.warning("topic %s had a setting that is left out: %s", name, error)
        else:
            configs[setting] = text
    return configs
