"""The search for the aborted transactions of a range of offsets. It serves segments of every kind: local, remote, and
those that Spark reads.
"""

from collections.abc import Iterable, Iterator

from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.search.rows import Row
from stablelog.log.search.source import SegmentSource


def find_aborted(source: SegmentSource[Row], start: int, end: int) -> tuple[list[AbortedTxn], bool]:
    """Find the aborted transactions with offsets in [start, end).

    Args:
        source: the segments of one partition in one place, such as its local disk.
        start: the first offset. Only markers in the segment of this offset and in later ones are found.
        end: the end of the range, exclusive.

    Returns:
        The transactions in the order of their markers, and whether the search is complete. If it is not, later segments
        may have further aborted transactions of the range.

    Raises:
        NotLoadedError: some transaction indexes are not loaded from the object store. The caller loads them and
            searches again.
        DamageError: a transaction index is damaged.
    """
    needed, is_complete = source.rows.with_aborts(start, end)
    found: list[AbortedTxn] = []
    for group in _in_groups(needed):
        source.require_txn_indexes(group)
        for row in group:
            entries, is_last = source.txn_index_of(row).collect(start, end)
            found += entries
            if is_last:
                return found, True
    return found, is_complete


def _in_groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Divide the segments into groups whose transaction indexes are loaded together. Yield the groups in the order of
    the segments.

    The search ends at the first segment whose stable offset (all transactions that began before it have ended) reaches
    the end of the range. If this offset is unknown before the segment's index is loaded, the search may end there. So
    the first group has at most 1 such segment, the next group 2, then 4 and so on: at most half of the loaded indexes
    are not needed.
    """
    group: list[Row] = []
    unknown_count, unknown_max = 0, 1
    for row in rows:
        group.append(row)
        unknown_count += row.stable_offset is None
        if unknown_count == unknown_max:
            yield group
            group, unknown_count, unknown_max = [], 0, unknown_max * 2
    if group:
        yield group
