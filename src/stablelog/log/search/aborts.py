"""The search for the aborted transactions of a range of offsets, in the segments of any place."""

from collections.abc import Iterable, Iterator

from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.search.rows import Row
from stablelog.log.search.source import SegmentSource


def find_aborted(source: SegmentSource[Row], start: int, end: int) -> tuple[list[AbortedTxn], bool]:
    """Find the aborted transactions with offsets in [start, end).

    Args:
        source: the segments.
        start: the first offset. Only markers in the segment with this offset and in later ones are found.
        end: the offset after the last one.

    Returns:
        The transactions in the order of their markers, and whether the search is complete. If it is not, later
        segments may have further aborted transactions of the range.

    Raises:
        NotLoadedError: some transaction indexes are not loaded.
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
    """Divide the segments into groups whose transaction indexes are loaded together.

    The rows tell where the search ends, as far as the stable offsets of the segments are known. If that of a segment is
    unknown, the search may end in its transaction index. A group therefore has a few of these segments: 1, then 2, 4
    and so on, so that at most half of the loaded indexes are not needed.
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
