"""The commit index (the list of the transactions that commit in a segment) of a segment that is in an object store."""

import struct
from dataclasses import dataclass

from stablelog.commit_order.extents import EXTENT
from stablelog.commit_order.index_format import ENTRY
from stablelog.commit_order.index_rows import IndexRows
from stablelog.env.disk import Buffer
from stablelog.log.remote_tier import RemoteCommits, RemoteView


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """Rows of a commit index (the list of the commits of a segment), all of the same size, that were loaded from an
    object store into memory.

    Attributes:
        content: the bytes of the rows.
        row: the `struct.Struct` of one row.
    """

    content: Buffer
    row: struct.Struct

    def __len__(self) -> int:
        return len(self.content) // self.row.size

    def __getitem__(self, place: int) -> tuple[int, ...]:
        return self.row.unpack_from(self.content, place * self.row.size)

    def between(self, first: int, end: int) -> Buffer:
        """Return the bytes of the loaded rows of a commit index (the list of the commits of a segment) that have the
        numbers from `first` to before `end`, counted from 0.
        """
        return self.content[first * self.row.size : end * self.row.size]


def load_index(remote: RemoteView, commits: RemoteCommits) -> IndexRows:
    """Return the commit index of a remote segment: the list of the transactions that commit in it.

    Args:
        remote: the remote segments of the partition.
        commits: the description of the index in the manifest, the list of the partition's segments in the store.

    Raises:
        NotLoadedError: the bytes of the index are not in the cache. The caller loads them and calls again.
        DamageError: the bytes in the store do not match the checksums in the manifest.
    """
    entries, extents = remote.commit_rows(commits.base_offset)
    return IndexRows(
        commits.base_offset,
        # The manifest does not know the last position. The positions of a segment end at its end offset at the latest.
        commits.end_offset,
        commits.least_first_offset,
        commits.latest_sequence,
        commits.latest_ms,
        LoadedRows(memoryview(entries), ENTRY),
        LoadedRows(memoryview(extents), EXTENT),
        len(entries) + len(extents),
    )
