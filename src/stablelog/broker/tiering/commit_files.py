"""The commit index of a copied segment (the list of the transactions that commit in it), as the
manifest describes it.
"""

from collections.abc import Mapping
from pathlib import Path

from stablelog.commit_order.index_format import CommitSummary
from stablelog.crc32c import crc32c
from stablelog.errors import DamageError, UnavailableError, adding_path
from stablelog.log.indexes.summary import Summary
from stablelog.tier.index_object import CommitFiles, IndexKind


def commit_files(
    segment: Summary, files: Mapping[IndexKind, bytes], paths: Mapping[IndexKind, Path]
) -> CommitFiles:
    """Return the description of the files of a segment's commit index, for the manifest. The index lists the
    transactions that commit in the segment, and the manifest the segments that a partition has in the store.

    Args:
        segment: the summary of the segment: its sizes, times and checksums.
        files: the contents of the segment's files.
        paths: the paths of these files, for messages.

    Raises:
        UnavailableError: the commit index is not written yet.
        UnknownFormatError: a later release has written the commit index.
        DamageError: a file is damaged, or belongs to another segment. The message names the file.
    """
    path = paths[IndexKind.COMMIT_SUMMARY]
    if IndexKind.COMMIT_SUMMARY not in files:
        raise UnavailableError(
            "a segment cannot be copied yet, because its commit index (the list of its transactions) "
            f"is not written: {path}. The next copy tries again"
        )
    with adding_path(path):
        summary = CommitSummary.decode(files[IndexKind.COMMIT_SUMMARY])
    if (summary.base_offset, summary.end_offset, summary.log_crc) != (
        segment.base_offset,
        segment.end_offset,
        segment.log_crc,
    ):
        raise DamageError(f"{path} belongs to another segment; a restart of the broker rebuilds the file")
    for kind, size, crc in (
        (IndexKind.COMMIT_ENTRIES, summary.entries_size, summary.entries_crc),
        (IndexKind.COMMIT_EXTENTS, summary.extents_size, summary.extents_crc),
    ):
        content = files.get(kind, b"")
        if len(content) != size or crc32c(content) != crc:
            raise DamageError(
                f"{paths[kind]} has another size or CRC than {path.name} says; a restart of the broker rebuilds "
                "the commit index"
            )
    return CommitFiles(
        summary.least_first_offset,
        summary.latest_sequence,
        summary.latest_ms,
        summary.entries_size,
        summary.entries_crc,
        summary.extents_size,
        summary.extents_crc,
    )
