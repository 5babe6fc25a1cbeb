"""Which commit indexes a reader in commit order gets, if the first segments of a partition are only in the store."""

from types import SimpleNamespace

import pytest

from stablelog.commit_order.index_rows import IndexRows
from stablelog.commit_order.tiered_indexes import TORN, TieredIndexes
from stablelog.errors import UnavailableError
from stablelog.log.remote_tier import RemoteCommits


def commits(base, latest_sequence, latest_ms=0, least=None):
    return RemoteCommits(base, base + 10, base if least is None else least, latest_sequence, latest_ms)


class Remote:
    """A remote tier with segments of 10 offsets each, and its own view."""

    def __init__(self, segments, start_offset=0, is_known=True):
        self.segments, self.start_offset, self.is_known = segments, start_offset, is_known
        self.view = self

    def commits(self, offset):
        return (one for one in self.segments if one.end_offset > max(offset, self.start_offset))

    def commits_after(self, commit_sequence):
        return next((one for one in self.segments if one.latest_sequence > commit_sequence), None)

    @property
    def latest_sequence(self):
        if not self.is_known:
            raise UnavailableError("the segments are not known")
        return self.segments[-1].latest_sequence

    def commit_rows(self, base_offset):
        return b"", b""


class Partition:
    def __init__(self, start_offset, remote):
        self.start_offset, self.remote = start_offset, remote


def local(base, latest_sequence, latest_ms=0, least=None, first_from=None):
    """The commit index of a local segment of 10 offsets. `first_from` has the least first offset from an entry on."""
    return SimpleNamespace(
        base_offset=base,
        view_end=base + 10,
        latest_sequence=latest_sequence,
        latest_ms=latest_ms,
        least_first_offset=base if least is None else least,
        place_of=lambda position: position - base,
        least_first_offset_from=(first_from or {}).get,
    )


STORED = [commits(0, 2, 5), commits(10, 4, 9), commits(20, 6, 7)]


@pytest.fixture
def partition():
    """Two segments are only in the store, one is in both tiers, and one is only local."""
    return Partition(20, Remote(STORED))


@pytest.fixture
def indexes(partition):
    return TieredIndexes(partition, [local(20, 6, 7), local(30, 8, 20)])


def places(found):
    return [("store" if isinstance(one, IndexRows) else "local", one.base_offset) for one in found]


ALL = [("store", 0), ("store", 10), ("local", 20), ("local", 30)]


@pytest.mark.parametrize(
    ("position", "first"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (99, 3)]
)
def test_a_reader_gets_the_indexes_from_its_position_on_each_from_one_tier(indexes, position, first):
    assert places(indexes.indexes_from(position)) == ALL[first:]


def test_a_partition_without_remote_tier_has_its_local_indexes():
    partition = Partition(20, None)
    indexes = TieredIndexes(partition, [local(20, 6), local(30, 8)])
    assert places(indexes.indexes_from(0)) == ALL[2:]
    assert indexes.log_start == 20
    assert indexes.latest_sequence == 8


def test_indexes_without_a_commit_of_the_time_are_passed_over(indexes):
    assert places(indexes.indexes_from(0, 7)) == [("store", 10), ("local", 20), ("local", 30)]
    assert places(indexes.indexes_from(0, 8)) == [("store", 10), ("local", 30)]
    assert places(indexes.indexes_from(0, 21)) == []
    assert places(indexes.indexes_from(20, 9)) == [("local", 30)]


def test_a_local_index_without_the_beginning_of_a_transaction_is_read_from_the_store(partition):
    indexes = TieredIndexes(partition, [local(20, 6, least=TORN), local(30, 8, least=TORN)])
    assert places(indexes.indexes_from(20)) == [("store", 20), ("local", 30)], (
        "the store has no copy of the last"
    )


def test_the_log_begins_where_the_first_of_the_tiers_begins(partition, indexes):
    assert indexes.log_start == 0
    partition.remote.start_offset = 12
    assert indexes.log_start == 12
    partition.remote.start_offset = 25
    assert indexes.log_start == 20


def test_a_segment_is_local_from_the_first_local_one_on(indexes):
    assert [indexes.is_local(base) for base in (0, 10, 20, 30)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("sequence", "found"),
    [(1, ("store", 0)), (2, ("store", 10)), (3, ("store", 10)), (4, ("local", 20)), (7, ("local", 30))],
)
def test_the_index_with_the_next_commit_sequence_is_found_in_either_tier(indexes, sequence, found):
    assert places([indexes.index_after_sequence(sequence)]) == [found]


def test_no_index_has_a_greater_commit_sequence_than_the_last(indexes):
    assert indexes.index_after_sequence(8) is None


def test_the_commit_sequence_before_an_index_is_the_greatest_that_either_tier_knows(partition):
    first, second = local(20, -1), local(30, 3)
    indexes = TieredIndexes(partition, [first, second])
    assert indexes.sequence_before(second) == 6, (
        "the local index was rebuilt, and the store has the earlier commits"
    )
    assert indexes.sequence_before(first) == 4
    assert indexes.sequence_before(next(indexes.indexes_from(0))) is None


def test_the_latest_commit_sequence_is_that_of_the_store_if_the_local_log_has_forgotten_it(partition):
    assert TieredIndexes(partition, [local(20, -1)]).latest_sequence == 6


def test_while_the_segments_of_the_store_are_not_known_the_local_log_tells_the_latest_commit_sequence():
    partition = Partition(20, Remote(STORED, is_known=False))
    assert TieredIndexes(partition, [local(20, 5)]).latest_sequence == 5


def test_the_least_first_offset_is_that_of_the_entries_from_the_start_on(indexes):
    index = local(20, 6, least=3, first_from={4: 15})
    assert indexes.least_first_offset(index, 20) == 3
    assert indexes.least_first_offset(index, 24) == 15


def test_for_a_torn_index_its_copy_tells_the_least_first_offset(partition):
    partition.remote.segments = [commits(20, 6, least=3)]
    indexes = TieredIndexes(partition, [local(20, 6, least=TORN, first_from={4: 15})])
    assert indexes.least_first_offset(indexes.local[0], 24) == 3


@pytest.mark.parametrize(
    ("stored", "local_base", "is_whole"),
    [(STORED, 20, True), (STORED[1:], 20, False), (STORED, 0, True), ([], 20, False)],
    ids=["first in store", "first deleted", "all local", "nothing stored"],
)
def test_a_log_is_whole_if_its_first_segment_is_in_one_of_the_tiers(stored, local_base, is_whole):
    partition = Partition(local_base, Remote(stored))
    assert TieredIndexes(partition, [local(local_base, 6)]).is_log_whole is is_whole
