"""The extents of a transaction: which batches share one, and what the commit writes."""

import random
import re

import pytest

from stablelog.commit_order import extents, index_format
from stablelog.commit_order.extents import EXTENT, SEVERAL, Extents
from stablelog.env.local_disk import LocalDisk
from tests import documented


@pytest.mark.parametrize("leader_epoch", [0, 7, 2**31 - 1, -1])
def test_once_it_is_committed_a_transaction_has_its_positions_and_the_leader_epoch_of_its_marker(
    tmp_path, leader_epoch
):
    extents = Extents(0, lambda: LocalDisk().open(tmp_path / "spill", create=True))
    extents.add_batch(5 << 33, 2**31, 600, 2)
    extents.add_batch(5 << 33, 2**31 + 600, 700, 3)
    rows, again = (b"".join(extents.rows(1 << 40, leader_epoch)) for _ in range(2))
    assert again == rows
    assert list(EXTENT.iter_unpack(rows)) == [
        (1 << 40, 588, leader_epoch, 5 << 33, 2**31, 2**31 + 600),
        ((1 << 40) + 2, 688, leader_epoch, 5 << 33, 2**31 + 600, 2**31 + 1300),
    ]


def test_the_limits_of_extents_are_those_of_the_document():
    text = documented.page("formats.md")
    words = (
        r"A batch of ([\d,]+) bytes or more has an extent of its own",
        r"if at most ([\d,]+) bytes are between them",
        r"share an extent of at most ([\d,]+) KiB",
        r"If an entry has ([\d,]+) extents or more",
    )
    told = (re.search(said.replace(" ", r"\s+"), text) for said in words)
    alone, gap, most, long = (int(found[1].replace(",", "")) for found in told)

    def count(*batches):
        one = Extents(0, lambda: None)
        for position, size in batches:
            one.add_batch(0, position, size, 1)
        return one.count

    assert count((0, alone - 1), (alone - 1, alone - 1)) == 1
    assert count((0, alone - 1), (alone - 1, alone)) == count((0, alone), (alone, alone - 1)) == 2
    assert [count((0, 100), (100 + between, 100)) for between in (gap, gap + 1)] == [1, 2]
    many = [(position, 128) for position in range(0, (most << 10) - 128, 128)]
    assert [count(*many, ((most << 10) - 128, size)) for size in (128, 129)] == [1, 2]
    entry = index_format.Entry(0, long, 0, 0, 1, 1, 0, long - 1, 0)
    assert (entry.is_long, entry._replace(extent_count=long).is_long) == (False, True)


def runs_of(batches):
    """Which batches share an extent, by the rules one by one: (position of the first, end of the last, count)."""
    found = []
    for position, size in batches:
        if found:
            begin, end, count = found[-1]
            is_small = size < extents.ALONE_SIZE and (count > 1 or end - begin < extents.ALONE_SIZE)
            is_near = position <= end + extents.GAP_SIZE_MAX
            if is_small and is_near and position + size <= begin + extents.SHARED_SIZE_MAX:
                found[-1] = (begin, position + size, count + 1)
                continue
        found.append((position, position + size, 1))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_batches_share_an_extent_up_to_each_limit(seed):
    chance = random.Random(seed)
    alone, gap, most = extents.ALONE_SIZE, extents.GAP_SIZE_MAX, extents.SHARED_SIZE_MAX
    batches, position, begin = [], 0, 0
    for _ in range(300):
        position += chance.choice((0, 0, 1, gap - 1, gap, gap + 1))
        size = chance.choice((100, 200, alone - 1, alone, alone + 1))
        left = begin + most - position  # as if all since `begin` had shared one
        if 70 < left <= alone:
            size = left + chance.choice((-1, 0, 1))
        if left <= 70 or chance.random() < 0.02:
            begin = position
        batches.append((position, size))
        position += size
    one = Extents(0, lambda: None)
    for position, size in batches:
        one.add_batch(7, position, size, 2)
    rows = [*EXTENT.iter_unpack(b"".join(one.rows(0, 0)))]
    expected = runs_of(batches)
    assert [row[3:] for row in rows] == [(7, begin, end) for begin, end, _ in expected]
    for (_, length, *_), (begin, end, count) in zip(rows, expected, strict=True):
        assert length == (SEVERAL if count > 1 else end - begin - 12)
    assert (one.count, one.record_count) == (len(rows), 2 * len(batches))
