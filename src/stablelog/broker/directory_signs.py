"""The two small files of Apache Kafka in a data directory: `meta.properties` and `.kafka_cleanshutdown`.

The start of the broker and `stablelog verify` read them with the same functions.

Format: docs/formats.md, "A data directory".
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stablelog.broker.catalog import CATALOG_FILE, Catalog
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, naming, refuse_newer

log = logging.getLogger(__name__)

META_FILE: Final = "meta.properties"
META_VERSION: Final = 1
OLD_META_VERSION: Final = 0  # of Kafka with ZooKeeper, which writes broker.id in place of node.id
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_VERSION: Final = 0
CLEAN_SHUTDOWN: Final = b'{"version":%d,"brokerEpoch":-1}' % CLEAN_SHUTDOWN_VERSION  # the content of the file


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of `meta.properties`.

    Attributes:
        cluster_id: of the data directory; empty if the file does not say it.
        node_id: of the broker whose directory it is; None if the file does not say it.
        fault: what is wrong with the file although it can be written again, in words; None if nothing is.
    """

    cluster_id: str
    node_id: int | None
    fault: str | None


def encode_meta(cluster_id: str, node_id: int, more: Sequence[str]) -> bytes:
    """Make the content of `meta.properties`, with more lines at its end."""
    lines = [f"version={META_VERSION}", f"cluster.id={cluster_id}", f"node.id={node_id}", *more]
    return "\n".join([*lines, ""]).encode()


def read_meta(disk: Disk, directory: Path, catalog: Catalog | None) -> Meta:
    """Read `meta.properties`. Nothing is written.

    Args:
        disk: where the directory lies.
        directory: the data directory.
        catalog: its list of topics; None if there is none, or if it is not read.

    Raises:
        NewerFormat: a later release has written the file.
        Corrupt: it names another cluster than the list of topics, or a node that is no number.
    """
    path = directory / META_FILE
    try:
        lines = disk.read_bytes(path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return Meta("", None, "is gone")
    pairs = {
        name.strip(): value.strip()
        for name, found, value in (line.partition("=") for line in lines if not line.startswith("#"))
        if found
    }
    version = _number(pairs.get("version", ""))
    if version is not None:
        with naming(path):
            refuse_newer("the directory's properties", version, META_VERSION)
    said, listed = pairs.get("cluster.id", ""), "" if catalog is None else catalog.cluster_id
    if listed and said and listed != said:
        raise Corrupt(
            f"{path} says cluster.id={said}, and {CATALOG_FILE} {listed}: they are of two directories, or damaged. "
            "Restore the one that is wrong"
        )
    node = pairs.get("node.id", pairs.get("broker.id"))
    node_id = None if node is None else _number(node)
    if node is not None and node_id is None:
        raise Corrupt(f"{path} says node.id={node}, which is no number. Restore the file")
    return Meta(said, node_id, _fault(pairs, version))


def _fault(pairs: dict[str, str], version: int | None) -> str | None:
    if not pairs.get("cluster.id"):
        return "does not name the cluster"
    if "node.id" not in pairs and "broker.id" not in pairs:
        return "does not name the node"
    if version != META_VERSION and not (version == OLD_META_VERSION and "broker.id" in pairs):
        return f"says version={pairs['version']}" if "version" in pairs else "does not say its version"
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(1 << 31)) else None


def check_clean_shutdown(disk: Disk, path: Path) -> None:
    """Read the file that says that the last stop was clean. An empty one is whole: old releases of Kafka write it so.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: it is damaged.
        FileNotFoundError: there is none.
    """
    content = disk.read_bytes(path)
    if not content:
        return
    try:
        read = json.loads(content)
        version = int(read["version"])
        int(read["brokerEpoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path} is damaged: it does not hold a version and a broker epoch") from error
    with naming(path):
        refuse_newer("the sign of a clean stop", version, CLEAN_SHUTDOWN_VERSION)
    if version != CLEAN_SHUTDOWN_VERSION:
        raise Corrupt(f"{path} is damaged: it says version {version}")


def was_stopped_cleanly(disk: Disk, path: Path) -> bool:
    """Whether the last broker on the directory closed it, which the existence of the file says.

    Raises:
        NewerFormat: a later release has written the file.
    """
    try:
        check_clean_shutdown(disk, path)
    except FileNotFoundError:
        return False
    except Corrupt as damaged:
        log.warning("%s. The last stop counts as a clean one", damaged)
    return True
