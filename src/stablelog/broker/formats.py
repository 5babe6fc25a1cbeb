"""Has a later release written to a data directory? Asked before this one writes anything into it.

Looked at are the files of the directory itself, and what the coordinators keep: all files and records of their logs.
Without those the broker cannot serve. Any other partition is looked at when it is opened (`stablelog.log.formats`), and is
the only one that stays offline.

Format: docs/formats.md, "How formats change".
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from stablelog.batch.header import HEADER, crc_holds, headers_in, read_header
from stablelog.batch.records import record_heads
from stablelog.broker.catalog import CATALOG_FILE
from stablelog.broker.catalog import VERSION as CATALOG_VERSION
from stablelog.broker.checkpoints import (
    FIRST_DIRTY_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
)
from stablelog.broker.directory_signs import (
    CLEAN_SHUTDOWN_FILE,
    META_FILE,
    check_clean_shutdown,
    read_meta,
)
from stablelog.broker.dynamic_settings import SETTINGS_FILE, decode_settings
from stablelog.broker.kafka_import import PARTITION_DIRECTORY
from stablelog.broker.partition_metadata import read_partition_metadata
from stablelog.broker.topic_names import CONSUMER_OFFSETS_TOPIC, is_internal
from stablelog.coordinators.consumer_groups import records as group_records
from stablelog.coordinators.joint import records as joint_records
from stablelog.coordinators.transactions import records as transaction_records
from stablelog.env.disk import Disk, File
from stablelog.errors import Corrupt, NewerFormat, naming, refuse_newer
from stablelog.log import formats as partition_formats
from stablelog.log.listing import Listing
from stablelog.log.names import is_log
from stablelog.views import formats as view_formats

CHECKPOINTS: Final = (
    LOG_START_CHECKPOINT,
    FIRST_DIRTY_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)
READ_SIZE: Final = 4 << 20
VERSION_SIZE: Final = 2
# By kind of key: what the value is, and the greatest version of it that is read.
COMMIT_LOG_VALUES: Final = {
    transaction_records.TRANSACTION_KIND: (
        transaction_records.TRANSACTION_VALUE,
        transaction_records.VALUE_VERSION,
    ),
    transaction_records.GROUP_KIND: (
        transaction_records.GROUP_STATE_VALUE,
        transaction_records.GROUP_VALUE_VERSION,
    ),
    transaction_records.JOINT_KIND: (joint_records.JOINT_VALUE, joint_records.VALUE_VERSION),
}
OFFSETS_LOG_VALUES: Final = {
    0: (group_records.OFFSET_VALUE, group_records.VALUE_VERSION_LAST),
    group_records.OFFSET_KEY_VERSION: (group_records.OFFSET_VALUE, group_records.VALUE_VERSION_LAST),
    group_records.GROUP_KEY_VERSION: (group_records.GROUP_VALUE, group_records.VALUE_VERSION_LAST),
}


def check_formats(disk: Disk, directory: Path) -> None:
    """Look at a data directory. Nothing is written. What is damaged is left to whoever reads it.

    Raises:
        NewerFormat: a later release has written to it; names the file, and the offset of a record.
    """
    for _, newer in newer_formats(disk, directory):
        raise newer


def newer_formats(disk: Disk, directory: Path) -> Iterator[tuple[Path, NewerFormat]]:
    """Find what a later release has written to a data directory and the broker cannot serve without.

    Nothing is written. Of each log of a coordinator, only the first such file or record is found.

    Returns:
        For each, the file and the error that names it.
    """
    for name, check in _CHECKS.items():
        path = directory / name
        if disk.exists(path):
            with contextlib.suppress(Corrupt, ValueError, KeyError, TypeError, FileNotFoundError):
                try:
                    with naming(path):
                        check(disk, path)
                except NewerFormat as newer:
                    yield path, newer
    for name in disk.list_dir(directory):
        match = PARTITION_DIRECTORY.fullmatch(name)
        if match is None or not is_internal(match["topic"]) or not disk.is_dir(directory / name):
            continue
        is_of_groups = match["topic"] == CONSUMER_OFFSETS_TOPIC
        values = OFFSETS_LOG_VALUES if is_of_groups else COMMIT_LOG_VALUES
        yield from _newer_in_log(disk, directory / name, values)


def check_partition_formats(disk: Disk, directory: Path) -> None:
    """Check the files of one partition. Writes nothing. Damage that a start puts right is passed over.

    Raises:
        NewerFormat: a later release has written one; names it.
        Corrupt: the file that says where a commit-ordered view begins is damaged.
    """
    listing = Listing(disk, directory)
    partition_formats.check_formats(listing)
    view_formats.check_formats(listing)
    with contextlib.suppress(Corrupt):
        read_partition_metadata(disk, directory)


def _by_json(what: str, known: int) -> Callable[[Disk, Path], None]:
    """A check of a file that is a JSON object with its version in it."""

    def check(disk: Disk, path: Path) -> None:
        refuse_newer(what, json.loads(disk.read_bytes(path))["version"], known)

    return check


_CHECKS: Final[dict[str, Callable[[Disk, Path], object]]] = {
    CATALOG_FILE: _by_json("the list of topics", CATALOG_VERSION),
    META_FILE: lambda disk, path: read_meta(disk, path.parent, None),
    SETTINGS_FILE: lambda disk, path: decode_settings(disk.read_bytes(path)),
    CLEAN_SHUTDOWN_FILE: check_clean_shutdown,
    **dict.fromkeys(CHECKPOINTS, read_offset_checkpoint),
}


# -- the coordinators' logs ----------------------------------------------------------------------------------------


def _newer_in_log(
    disk: Disk, directory: Path, values: dict[int, tuple[str, int]]
) -> Iterator[tuple[Path, NewerFormat]]:
    try:
        check_partition_formats(disk, directory)
    except NewerFormat as newer:
        yield Path(newer.place), newer
        return
    checked: set[tuple[bytes, bytes]] = set()  # there are few kinds of records, and many records
    for name in disk.list_dir(directory):
        if is_log(name):
            try:
                _check_records(disk, directory / name, values, checked)
            except NewerFormat as newer:
                yield directory / name, newer
                return


def _check_records(
    disk: Disk, path: Path, values: dict[int, tuple[str, int]], checked: set[tuple[bytes, bytes]]
) -> None:
    """Check the records of a log file whose beginnings are not among those checked before."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return  # a broker that runs has deleted it meanwhile
    try:
        for offset, key, value in _heads_in(file):
            if (key, value) not in checked:
                with naming(f"{path}, offset {offset}"):
                    _check_record(key, value, values)
                checked.add((key, value))
    finally:
        file.close()


def _check_record(key: bytes, value: bytes, values: dict[int, tuple[str, int]]) -> None:
    """Check how a key and a value begin: with the kind of the record, and with the value's version."""
    kind = int.from_bytes(key, "big")
    if values is COMMIT_LOG_VALUES:
        transaction_records.check_kind(kind)
    if kind in values and value:
        what, known = values[kind]
        refuse_newer(what, int.from_bytes(value, "big"), known)


def _heads_in(file: File) -> Iterator[tuple[int, bytes, bytes]]:
    """The records of a log file, up to where it is damaged or torn: offset, and how key and value begin."""
    position = 0
    with contextlib.suppress(Corrupt):
        while position + HEADER.size <= file.size:
            data = file.read(position, max(READ_SIZE, read_header(file.read(position, HEADER.size)).size))
            begun = position
            for at, header in headers_in(data):
                if not crc_holds(data, at, header):
                    return
                if not header.is_control:
                    yield from record_heads(data, at, VERSION_SIZE)
                position = begun + at + header.size
            if position == begun:
                return
