"""The object with all files of a remote segment except its log file: indexes, producer snapshots and leader epochs.

The files stand one after another. First are the offset index, the time index, the transaction index, and the entries of
the commit index with their extents, the byte ranges of the transactions. The manifest, the list of the partition's
segments in the store, has the sizes of these files, so one request for a range reads one of them. At the end is a
directory: a table with the position, the size and the CRC of each file.

Format: docs/reference/formats.md, "The object of indexes".
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer
from stablelog.errors import DamageError, adding_path, refuse_unknown_version
from stablelog.log.indexes.summary import Summary

VERSION: Final = 1
ROW: Final = struct.Struct(
    ">"
    "b"  # kind: of the file, an IndexKind
    "q"  # position: of the file in the object
    "q"  # size: of the file in bytes
    "I"  # crc: CRC-32C of the file
)
FOOTER: Final = struct.Struct(
    ">"
    "h"  # version: 1
    "h"  # count: of the rows, which stand before the footer
    "I"  # crc: CRC-32C of the rows
)

INDEXES_CRC: Final = struct.Struct(">I")  # indexes_crc: CRC-32C of the rows, in the manifest


class IndexKind(IntEnum):
    """The kind of a file in the object of indexes, which has all files of a remote segment except its log file."""

    OFFSETS = 0
    TIMES = 1
    TRANSACTIONS = 2
    COMMIT_ENTRIES = 3
    COMMIT_EXTENTS = 4
    COMMIT_SUMMARY = 5
    SNAPSHOT = 6  # Kafka's producer snapshot at the end of the segment
    PRODUCERS = 7  # stablelog's producer snapshot at the end of the segment
    LEADER_EPOCHS = 8  # the leader epochs from the beginning of the log to the end of the segment


class CommitFiles(NamedTuple):
    """What the manifest says about the files of a segment's commit index, in a commit-ordered topic: their sizes,
    checksums and last commit. The index lists the transactions that commit in the segment. `COMMIT_FILES` describes the
    fields.
    """

    least_first_offset: int
    latest_sequence: int
    latest_ms: int
    entries_size: int
    entries_crc: int
    extents_size: int
    extents_crc: int


COMMIT_FILES: Final = struct.Struct(
    ">"
    "q"  # least_first_offset: the least offset at which a transaction begins whose commit marker is in the segment
    "q"  # latest_sequence: the greatest commit sequence up to the end of the segment; -1 if there is none
    "q"  # latest_ms: the latest commit time in the segment, in ms since 1970; -1 if there is none
    "I"  # entries_size: bytes of the file of entries
    "I"  # entries_crc: CRC-32C of this file
    "I"  # extents_size: bytes of the file of extents
    "I"  # extents_crc: CRC-32C of this file
)


def index_range(summary: Summary, commit: CommitFiles | None, kind: IndexKind) -> tuple[int, int, int]:
    """Return the place of an index in the object of indexes of a segment, which has all its files except the log file:
    its position and size in bytes, and its CRC.

    Args:
        summary: the summary of the segment, with the sizes and checksums of Kafka's indexes.
        commit: sizes and checksums of the commit index, which lists the transactions that commit in the segment; None
            if the segment has none.
        kind: the kind of the index. The sizes of the offset, time and transaction index, and of the entries and extents
            of the commit index are known.
    """
    log_sizes, log_crcs = summary.index_files
    sizes, crcs = [*log_sizes], [*log_crcs]
    if commit is not None:
        sizes += [commit.entries_size, commit.extents_size]
        crcs += [commit.entries_crc, commit.extents_crc]
    return sum(sizes[:kind]), sizes[kind], crcs[kind]


def encode_indexes(files: Mapping[IndexKind, Buffer]) -> bytes:
    """Encode the object of indexes of one segment, which has all its files except the log file. `files` has their
    contents by kind.
    """
    kinds = sorted(files)
    directory, position = b"", 0
    for kind in kinds:
        directory += ROW.pack(kind, position, len(files[kind]), crc32c(files[kind]))
        position += len(files[kind])
    contents = [files[kind] for kind in kinds]
    return b"".join([*contents, directory, FOOTER.pack(VERSION, len(files), crc32c(directory))])


def directory_crc(content: Buffer) -> int:
    """Return the CRC-32C of the directory at the end of an object of indexes: one row with position, size and CRC for
    each file in it. Whoever knows this number can check the rows by it, and then each file. The caller passes an
    undamaged object.
    """
    _version, _count, crc = FOOTER.unpack_from(content, len(content) - FOOTER.size)
    return int(crc)


def indexes_of(content: Buffer, key: str) -> dict[IndexKind, Buffer]:
    """Decode an object of indexes, which has all files of a remote segment except its log file. Return the files by
    kind. The result is an empty dictionary if `content` is empty, which stands for an object that does not exist.

    Raises:
        UnknownFormatError: a later release has written the object.
        DamageError: the object is damaged.
    """
    if not len(content):
        return {}
    end = len(content) - FOOTER.size
    if end < 0:
        raise DamageError(
            f"the object {key} is damaged: it has {len(content)} bytes, but an object of indexes has "
            f"at least {FOOTER.size}"
        )
    version, count, crc = FOOTER.unpack_from(content, end)
    with adding_path(key):
        refuse_unknown_version("an object of indexes", version, VERSION)
    begin = end - count * ROW.size
    view = memoryview(content)
    if version != VERSION or begin < 0 or crc32c(view[begin:end]) != crc:
        raise DamageError(f"{key}: the directory at the end of the object of indexes is damaged")
    files: dict[IndexKind, Buffer] = {}
    for kind, position, size, file_crc in ROW.iter_unpack(view[begin:end]):
        file = view[position : position + size]
        if kind not in list(IndexKind) or position + size > begin or crc32c(file) != file_crc:
            raise DamageError(f"{key}: the file of kind {kind} at byte {position} is damaged")
        files[IndexKind(kind)] = file
    return files


def proven_indexes(
    content: Buffer, key: str, summary: Summary | None, commit: CommitFiles | None, crc: int | None
) -> dict[IndexKind, Buffer]:
    """Decode an object of indexes (all files of a remote segment except its log file), and check that it is the one
    that the manifest, the list of the partition's segments, describes. Return its files by kind.

    Args:
        content: the content of the object.
        key: the key of the object, for messages.
        summary: the summary of the segment, with the sizes and checksums of its indexes; None if it has none.
        commit: sizes and checksums of the commit index; None if the segment has none.
        crc: the CRC-32C of the directory at the end of the object, a row with the checksum of each file; None if the
            manifest does not have it.

    Raises:
        UnknownFormatError: a later release has written the object.
        DamageError: the object is damaged, or has other indexes.
    """
    files = indexes_of(content, key)
    if not files:
        raise DamageError(f"{key}: the object is empty")
    if crc is not None and directory_crc(content) != crc:
        raise DamageError(
            f"the object {key} is not the object of indexes that the manifest describes: it belongs "
            "to another segment, or was changed"
        )
    if summary is None:
        return files
    kinds = [IndexKind.OFFSETS, IndexKind.TIMES, IndexKind.TRANSACTIONS]
    if commit is not None:
        kinds += [IndexKind.COMMIT_ENTRIES, IndexKind.COMMIT_EXTENTS]
    for kind in kinds:
        start, size, file_crc = index_range(summary, commit, kind)
        if crc32c(memoryview(content)[start : start + size]) != file_crc:
            raise DamageError(
                f"the object {key} is damaged: its {kind.name} index does not have the CRC that the manifest contains"
            )
    return files
