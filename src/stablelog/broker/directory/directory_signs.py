"""The two small files of Apache Kafka in a data directory: `meta.properties` and `.kafka_cleanshutdown`.

The broker, when it starts, and `stablelog verify` read these files with the functions of this module.

Format: docs/formats.md, "A data directory".
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stablelog.broker.directory.catalog import CATALOG_FILE, Catalog
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, naming, refuse_newer
from stablelog.json_text import parse_json
from stablelog.log.files.kafka_files import (
    META_FILE,
    META_VERSION,
    OLD_META_VERSION,
    decode_meta,
    natural,
    node_id_in,
)

log = logging.getLogger(__name__)

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_VERSION: Final = 0
CLEAN_SHUTDOWN: Final = b'{"version":%d,"brokerEpoch":-1}' % CLEAN_SHUTDOWN_VERSION


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of `meta.properties`.

    Attributes:
        cluster_id: id of the cluster that the data directory belongs to; empty if the file does not contain it.
        node_id: id of the broker that the directory belongs to; None if the file does not contain it.
        fault: a defect of the file, after which the broker writes the file again; None without a defect.
    """

    cluster_id: str
    node_id: int | None
    fault: str | None


def read_meta(disk: Disk, directory: Path, catalog: Catalog | None) -> Meta:
    """Read and check `meta.properties`, without writing anything.

    Args:
        disk: the disk that the directory is on.
        directory: the data directory.
        catalog: the directory's list of topics; None if the directory has none, or the caller has not read it.

    Raises:
        NewerFormatError: a later release has written the file.
        DamageError: the file names another cluster than the list of topics does, or its node id is not a number.
    """
    path = directory / META_FILE
    try:
        pairs = decode_meta(disk.read_bytes(path))
    except FileNotFoundError:
        return Meta("", None, "is gone")
    version = natural(pairs.get("version", ""))
    if version is not None:
        with naming(path):
            refuse_newer("the directory's properties", version, META_VERSION)
    said, listed = pairs.get("cluster.id", ""), "" if catalog is None else catalog.cluster_id
    if listed and said and listed != said:
        raise DamageError(
            f"{path} says cluster.id={said}, and {CATALOG_FILE} {listed}: the files are from two directories, or one is damaged. "
            "Restore the wrong file"
        )
    node, node_id = pairs.get("node.id", pairs.get("broker.id")), node_id_in(pairs)
    if node is not None and node_id is None:
        raise DamageError(f"{path} says node.id={node}, which is not a number. Restore the file")
    return Meta(said, node_id, _fault(pairs, version))


def _fault(pairs: dict[str, str], version: int | None) -> str | None:
    if not pairs.get("cluster.id"):
        return "does not name the cluster"
    if "node.id" not in pairs and "broker.id" not in pairs:
        return "does not name the node"
    if version != META_VERSION and not (version == OLD_META_VERSION and "broker.id" in pairs):
        return f"says version={pairs['version']}" if "version" in pairs else "does not say its version"
    return None


def check_clean_shutdown(disk: Disk, path: Path) -> None:
    """Check the file that marks a clean stop.

    An empty file is valid, because old releases of Kafka write an empty file.

    Raises:
        NewerFormatError: a later release has written the file.
        DamageError: the file is damaged.
        FileNotFoundError: the file does not exist.
    """
    content = disk.read_bytes(path)
    if not content:
        return
    try:
        read = parse_json(content)
        version = int(read["version"])
        int(read["brokerEpoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(f"{path} is damaged: it does not hold a version and a broker epoch") from error
    with naming(path):
        refuse_newer("the sign of a clean stop", version, CLEAN_SHUTDOWN_VERSION)
    if version != CLEAN_SHUTDOWN_VERSION:
        raise DamageError(f"{path} is damaged: it says version {version}")


def was_stopped_cleanly(disk: Disk, path: Path) -> bool:
    """Whether the last broker that used the directory has stopped cleanly, so that the file `path` marks a clean stop.

    The result is True even if the file is damaged.

    Raises:
        NewerFormatError: a later release has written the file.
    """
    try:
        check_clean_shutdown(disk, path)
    except FileNotFoundError:
        return False
    except DamageError as damaged:
        log.warning("%s. The broker treats the last stop as clean", damaged)
    return True
