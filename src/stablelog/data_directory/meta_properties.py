"""The file `meta.properties`, which records the cluster and the node that a data directory belongs to.

The broker reads it at its start, and so do `stablelog verify` and Spark.

Format: docs/reference/formats.md, "meta.properties".
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stablelog.data_directory.catalog import CATALOG_FILE, Catalog
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, adding_path, refuse_unknown_version

META_FILE: Final = "meta.properties"
META_VERSION: Final = 1
OLD_META_VERSION: Final = 0  # written by Kafka with ZooKeeper, with broker.id in place of node.id


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of `meta.properties`.

    Attributes:
        cluster_id: id of the cluster that the data directory belongs to; empty if the file does not have it.
        node_id: id of the broker that the directory belongs to; None if the file does not have it.
        fault: what is wrong with the file, in words; the broker then writes the file again. None if the file is whole.
    """

    cluster_id: str
    node_id: int | None
    fault: str | None


def read_meta(disk: Disk, directory: Path, catalog: Catalog | None) -> Meta:
    """Read and check `meta.properties`. Nothing is written.

    Args:
        disk: the disk of the directory.
        directory: the data directory.
        catalog: the directory's list of topics; None if there is none, or if the caller has not read it.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file names another cluster than the list of topics does, or its node id is not a number.
    """
    path = directory / META_FILE
    try:
        pairs = decode_meta(disk.read_bytes(path))
    except FileNotFoundError:
        return Meta("", None, "is gone")
    version = parse_natural(pairs.get("version", ""))
    if version is not None:
        with adding_path(path):
            refuse_unknown_version("the directory's properties", version, META_VERSION)
    said, listed = pairs.get("cluster.id", ""), "" if catalog is None else catalog.cluster_id
    if listed and said and listed != said:
        raise DamageError(
            f"{path} says cluster.id={said}, but {CATALOG_FILE} says {listed}: the files are from two "
            "directories, or one is damaged. Restore the file that is wrong"
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


def node_id_of(disk: Disk, directory: Path) -> int | None:
    """Return the id of the broker that a data directory belongs to, from `meta.properties`; None if the file is missing
    or does not have it.
    """
    with contextlib.suppress(FileNotFoundError):
        return node_id_in(decode_meta(disk.read_bytes(directory / META_FILE)))
    return None


def decode_meta(content: bytes) -> dict[str, str]:
    """Decode the properties in a `meta.properties` file. Lines that are no properties are ignored."""
    lines = content.decode(errors="replace").splitlines()
    return {
        name.strip(): value.strip()
        for name, found, value in (line.partition("=") for line in lines if not line.startswith("#"))
        if found
    }


def encode_meta(cluster_id: str, node_id: int, more: Sequence[str]) -> bytes:
    """Encode the content of `meta.properties`. The lines `more`, such as those that register other files, are added at
    its end.
    """
    lines = [f"version={META_VERSION}", f"cluster.id={cluster_id}", f"node.id={node_id}", *more]
    return "\n".join([*lines, ""]).encode()


def node_id_in(properties: Mapping[str, str]) -> int | None:
    """Return the node id in the properties of `meta.properties`; None if it is missing or no number."""
    return parse_natural(properties.get("node.id", properties.get("broker.id", "")))


def parse_natural(text: str) -> int | None:
    """Return the natural number that a text of 1 to 10 ASCII digits stands for; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(1 << 31)) else None
