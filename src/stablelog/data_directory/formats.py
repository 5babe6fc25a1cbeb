"""Check of the format versions in a data directory: a start of the broker makes it before it writes anything.

The broker needs the files of the directory itself, and all files and records of the coordinators' logs: without them it
does not start. Every other partition is checked when it is opened (`stablelog.log.recovery.formats`). If this release
does not read one of its files, only that partition stays offline.

Format: docs/reference/formats.md, "How formats change".
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from stablelog.batch.records import decode_records, record_heads
from stablelog.commit_order import formats as view_formats
from stablelog.coordinators.consumer_groups import records as group_records
from stablelog.coordinators.consumer_groups.consumer_protocol import records as consumer_records
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC, is_coordinator_log
from stablelog.coordinators.transactions import records as transaction_records
from stablelog.coordinators.transactions.joint import records as joint_records
from stablelog.data_directory.acl_file import decode_acls
from stablelog.data_directory.catalog import CATALOG, CATALOG_FILE
from stablelog.data_directory.catalog import VERSION as CATALOG_VERSION
from stablelog.data_directory.checkpoints import CHECKPOINTS, read_offset_checkpoint
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE, check_clean_shutdown
from stablelog.data_directory.meta_properties import META_FILE, read_meta
from stablelog.data_directory.names import partition_named
from stablelog.data_directory.quota_file import decode_quotas
from stablelog.data_directory.registered_file import ACLS, QUOTAS, USERS, decode_json
from stablelog.data_directory.settings_file import SETTINGS_FILE, decode_settings
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DamageError, UnknownFormatError, adding_path, refuse_unknown_version
from stablelog.json_text import parse_json
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import is_log
from stablelog.log.files.partition_metadata import read_partition_metadata
from stablelog.log.recovery import formats as partition_formats
from stablelog.log.segments.scan import check_crc, scan_batches

VERSION_SIZE: Final = 2


class ReadVersions(NamedTuple):
    """The versions of one kind of value that this release reads.

    Attributes:
        what: the name of the kind.
        known: the greatest version of this kind that this release reads.
        least: the least version that this release reads.
    """

    what: str
    known: int
    least: int = 0


# For each kind of record key: the versions of the value.
COMMIT_LOG_VALUES: Final = {
    transaction_records.TRANSACTION_KIND: ReadVersions(
        transaction_records.TRANSACTION_VALUE, transaction_records.VALUE_VERSION
    ),
    transaction_records.GROUP_KIND: ReadVersions(
        transaction_records.GROUP_STATE_VALUE, transaction_records.GROUP_VALUE_VERSION
    ),
    transaction_records.JOINT_KIND: ReadVersions(
        joint_records.JOINT_VALUE, joint_records.VALUE_VERSION_ACCEPTED, joint_records.VALUE_VERSION
    ),
}
COMMITTED_OFFSET: Final = ReadVersions(group_records.OFFSET_VALUE, group_records.VALUE_VERSION_LAST)
OFFSETS_LOG_VALUES: Final = {
    **dict.fromkeys(group_records.OFFSET_KEY_VERSIONS, COMMITTED_OFFSET),
    group_records.GROUP_KEY_VERSION: ReadVersions(
        group_records.GROUP_VALUE, group_records.VALUE_VERSION_LAST
    ),
    **{
        kind: ReadVersions(what, consumer_records.VALUE_VERSION)
        for kind, what in consumer_records.VALUES.items()
    },
}


def check_formats(disk: Disk, directory: Path) -> None:
    """Check that this release reads all files of a data directory that the broker needs to start. Nothing is written.
    Damage is ignored here, because the code that reads the file reports it.

    Raises:
        UnknownFormatError: this release does not read the version of a file or record. The error names the file and, in a
            log, the offset.
    """
    for _, newer in newer_formats(disk, directory):
        raise newer


def newer_formats(disk: Disk, directory: Path) -> Iterator[tuple[Path, UnknownFormatError]]:
    """Find the files that the broker needs to start, and whose version this release does not read. Nothing is written.

    Yields:
        The path of the file, and the error that names it. In each coordinator's log, only the first record with such a
        version is found.
    """
    for name, check in _CHECKS.items():
        path = directory / name
        if disk.exists(path):
            with contextlib.suppress(DamageError, ValueError, KeyError, TypeError, FileNotFoundError):
                try:
                    with adding_path(path):
                        check(disk, path)
                except UnknownFormatError as newer:
                    yield path, newer
    for name in disk.list_dir(directory):
        partition = partition_named(name)
        if partition is None or not is_coordinator_log(partition[0]) or not disk.is_dir(directory / name):
            continue
        is_of_groups = partition[0] == CONSUMER_OFFSETS_TOPIC
        values = OFFSETS_LOG_VALUES if is_of_groups else COMMIT_LOG_VALUES
        yield from _newer_in_log(disk, directory / name, values)


def check_partition_formats(disk: Disk, directory: Path) -> None:
    """Check that this release reads the versions of a partition's files. Damage that a start of the broker repairs is
    ignored.

    Raises:
        UnknownFormatError: this release does not read the version of a file. The error names the file.
        DamageError: a file of a commit-ordered partition is damaged: the one that records from which position in commit
            order the partition can be read.
    """
    listing = Listing(disk, directory)
    partition_formats.check_formats(listing)
    view_formats.check_formats(listing)
    with contextlib.suppress(DamageError):
        read_partition_metadata(disk, directory)


def _check_catalog(disk: Disk, path: Path) -> None:
    version = parse_json(disk.read_bytes(path))["version"]
    refuse_unknown_version(CATALOG, version, CATALOG_VERSION, CATALOG_VERSION)


_CHECKS: Final[dict[str, Callable[[Disk, Path], object]]] = {
    CATALOG_FILE: _check_catalog,
    META_FILE: lambda disk, path: read_meta(disk, path.parent, None),
    SETTINGS_FILE: lambda disk, path: decode_settings(disk.read_bytes(path)),
    ACLS.name: lambda disk, path: decode_acls(disk.read_bytes(path)),
    USERS.name: lambda disk, path: decode_json(USERS, disk.read_bytes(path), lambda _version, _members: None),
    QUOTAS.name: lambda disk, path: decode_quotas(disk.read_bytes(path)),
    CLEAN_SHUTDOWN_FILE: check_clean_shutdown,
    **dict.fromkeys(CHECKPOINTS, read_offset_checkpoint),
}


# -- the coordinators' logs ----------------------------------------------------------------------------------------


def _newer_in_log(
    disk: Disk, directory: Path, values: dict[int, ReadVersions]
) -> Iterator[tuple[Path, UnknownFormatError]]:
    try:
        check_partition_formats(disk, directory)
    except UnknownFormatError as newer:
        yield Path(newer.place), newer
        return
    # The first bytes of key and value of the records that were checked. One record of each kind and version is enough:
    # the log has many records and few kinds.
    checked: set[tuple[bytes, bytes]] = set()
    for name in disk.list_dir(directory):
        if is_log(name):
            try:
                _check_records(disk, directory / name, values, checked)
            except UnknownFormatError as newer:
                yield directory / name, newer
                return


def _check_records(
    disk: Disk, path: Path, values: dict[int, ReadVersions], checked: set[tuple[bytes, bytes]]
) -> None:
    """Check the versions of the records in a log file, up to the first batch that is damaged or incomplete. `values`
    and `checked` are the versions that this release reads, and the versions that were checked already: see
    `_check_batch`.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return  # A running broker has deleted this log file since the directory was listed.
    try:
        with contextlib.suppress(DamageError):
            for position, header, batch in scan_batches(file.read, 0, file.size):
                check_crc(header, batch, position)
                if not header.is_control:
                    _check_batch(path, batch, values, checked)
    finally:
        file.close()


def _check_batch(
    path: Path, batch: Buffer, values: dict[int, ReadVersions], checked: set[tuple[bytes, bytes]]
) -> None:
    """Check the versions of the records in a batch.

    Args:
        path: the path of the log file, for error messages.
        batch: the bytes of the batch.
        values: the versions that this release reads, by kind of record.
        checked: the pairs of the first bytes of key and value that were checked before; those of this batch are added.
            A record with a known pair is skipped, because its kind and version are in these bytes. This does not
            suffice for committed offsets with tagged fields, because a later release may add a tag without a new
            version: each of them is decoded as a whole.
    """
    has_tags = False
    for offset, key, value in record_heads(batch, 0, VERSION_SIZE):
        if (key, value) not in checked:
            with adding_path(f"{path}, offset {offset}"):
                _check_record(key, value, values)
            checked.add((key, value))
        has_tags = has_tags or _has_tags(key, value, values)
    for record in decode_records(batch) if has_tags else ():
        if record.key and record.value and _has_tags(record.key, record.value, values):
            with adding_path(f"{path}, offset {record.offset}"):
                group_records.read_offset_value(record.value)


def _check_record(key: bytes, value: bytes, values: dict[int, ReadVersions]) -> None:
    """Check that this release knows the kind of a record and reads the version of its value. Both are in the first
    bytes of the key and of the value.
    """
    kind = int.from_bytes(key, "big")
    if values is COMMIT_LOG_VALUES:
        transaction_records.check_kind(kind)
    if kind in values and value:
        read = values[kind]
        refuse_unknown_version(read.what, int.from_bytes(value, "big"), read.known, read.least)


def _has_tags(key: bytes, value: bytes, values: dict[int, ReadVersions]) -> bool:
    """Whether a record, by the first bytes of its key and its value, is a committed offset in a version with tagged
    fields.
    """
    kind, version = (int.from_bytes(one[:VERSION_SIZE], "big") for one in (key, value))
    return values.get(kind) is COMMITTED_OFFSET and version == group_records.FLEXIBLE_VERSION
