"""Compaction as an open log sees it: whether a pass begins, and whether its segments are put in place."""

import pytest

from stablelog.log.verify import verify_directory
from tests.log.compaction.test_policy import KEYS, KeyedLog
from tests.log.timeline import DIRECTORY


def test_a_topic_that_is_not_to_be_compacted_and_one_with_little_to_do_are_left_alone():
    log = KeyedLog(cleanup_policy=frozenset({"delete"})).write("a=1 a=2")
    assert log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS) is None
    log = KeyedLog(min_cleanable_dirty_ratio=0.5).write("a=1 b=1 c=1 d=1")
    log.compact()
    assert log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS) is None
    log.write("a=2")
    assert log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS) is None
    log.write("a=3 b=3 c=3")
    log.compact()
    assert log.words() == "3:d=1 5:a=3 6:b=3 7:c=3"


@pytest.mark.parametrize("offset", range(1, 9))
def test_a_segment_that_was_made_of_several_is_not_put_in_place_of_fewer(offset):
    log = KeyedLog().write("a=1 a=2 b=1").write("a=3 b=2 c=1").write("c=2 a=4", roll=False)
    work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS)
    cleaned = next(one for one in work.steps() if one is not None)
    assert cleaned.replaced == (0, 3)
    log.partition.replication.truncate_to(offset)
    before = log.words()
    assert log.partition.compaction.put_in_place(cleaned) is (offset == 8), "any cut makes other segments"
    if offset < 8:
        assert log.words() == before
    assert not [name for name in log.disk.list_dir(DIRECTORY) if name.endswith(".cleaned")]
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_segments_that_were_deleted_or_cut_meanwhile_are_not_brought_back():
    for change in ("delete", "cut"):
        log = KeyedLog(segment_bytes=100).write("a=1 a=2 a=3 a=4")
        work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS)
        steps = work.steps()
        cleaned = next(one for one in steps if one is not None)
        if change == "delete":
            log.partition.deletion.delete_records(2)
        else:
            log.partition.replication.truncate_to(1)
        before = log.words()
        assert not log.partition.compaction.put_in_place(cleaned)
        work.cancel()
        assert list(steps) == []
        assert log.words() == before
        assert not [name for name in log.disk.list_dir(DIRECTORY) if name.endswith(".cleaned")]
