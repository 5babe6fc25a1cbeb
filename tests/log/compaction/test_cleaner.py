"""The passes of compaction and of the removal of aborted data: their steps, and how they end."""

import pytest

from stablelog.log.compaction import rewriter
from stablelog.log.segments import proof
from stablelog.log.segments.replacement import CLEANED
from tests.log.compaction.test_aborted_data import cleaned, written
from tests.log.compaction.test_policy import KEYS, KeyedLog
from tests.log.timeline import NOW_MS


def reopened_unproven(monkeypatch):
    """A log of three segments that a start takes on trust; a proof of each takes several steps."""
    monkeypatch.setattr(proof, "PIECE_SIZE", 61)
    monkeypatch.setattr(proof, "CHUNK_SIZE", 61)
    log = KeyedLog().write("a=1 b=1 a=2").write("b=2 c=1 c=2")
    log.partition.close()
    log.partition = log.open(clean=True, prove=False)
    return log


def test_a_pass_proves_what_it_reads_in_steps(monkeypatch):
    log = reopened_unproven(monkeypatch)
    assert not any(segment.is_proven for segment in log.partition.segments()[:2])
    work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS)
    steps = list(work.steps())
    assert steps.count(None) == 4, "a proof of three batches takes two steps"
    assert [cleaned.replaced for cleaned in steps if cleaned is not None] == [(0, 3)]
    assert not work.cancelled


@pytest.mark.parametrize("count", range(12))
def test_a_pass_that_is_cancelled_after_any_step_ends_there_and_leaves_nothing(count, monkeypatch):
    monkeypatch.setattr(rewriter, "STEP_SIZE", 1)  # so that each batch is a step
    log = reopened_unproven(monkeypatch)
    before = sorted(log.disk.files())
    work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS)
    steps = work.steps()
    assert all(next(steps) is None for _ in range(count))
    work.cancel()
    assert work.cancelled
    assert len(list(steps)) <= 1
    assert sorted(log.disk.files()) == before
    assert [segment.base_offset for segment in log.partition.segments()] == [0, 3, 6]


def test_a_pass_that_is_cancelled_between_two_segments_keeps_the_first_one():
    log = KeyedLog(segment_bytes=400).write("a=1 b=1 a=2 b=2 a=3").write("c=1 d=1 c=2 e=1 f=1").write("g=1")
    work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS)
    for one in work.steps():
        if one is not None:
            assert log.partition.compaction.put_in_place(one)
            work.cancel()
    assert log.words() == "3:b=2 4:a=3 5:c=1 6:d=1 7:c=2 8:e=1 9:f=1 10:g=1"


def test_what_a_pass_that_nobody_has_ended_has_written_is_replaced_by_the_next_one():
    """As where the task of a pass is garbage: its files stay, under names that only compaction writes."""
    log = KeyedLog().write("a=1 b=1 a=2 c=1").write("b=2")
    steps = log.partition.compaction.begin_pass(log.now_ms, key_count_max=KEYS).steps()
    assert any(cleaned is not None for cleaned in steps)
    steps.close()
    assert any(path.name.endswith(CLEANED) for path in log.disk.files())
    log.compact()
    assert log.words() == "2:a=2 3:c=1 4:b=2"
    assert not any(path.name.endswith(CLEANED) for path in log.disk.files())


def test_a_pass_takes_only_segments_that_are_new_since_the_last_one():
    log = written("P1 P1 P1a - | P1 P1a P1 P1c |", drops_aborted=True)
    assert cleaned(log) == 2
    assert cleaned(log) is None
    log.write("P1 P1 P1a -")
    log.partition.roll(NOW_MS)
    log.sync()
    assert cleaned(log) == 1


def test_without_the_setting_nothing_is_removed():
    log = written("P1 P1 P1a - | P1 P1a P1 P1c |")
    assert cleaned(log) is None


def test_a_segment_with_an_open_transaction_is_left_until_it_has_ended():
    log = written("P1 P1 P1a - | P2 P1 P1a P1 P1c | -", drops_aborted=True)
    assert cleaned(log) == 1
    log.write("P2c")
    assert cleaned(log) == 1


def test_a_pass_that_is_cancelled_leaves_no_file():
    log = written("P1 P1 P1a - | P1 P1a P1 P1c |", drops_aborted=True)
    work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=1)
    work.cancel()
    assert list(work.steps()) == []
    assert not any(name.endswith(rewriter.CLEANED) for name in log.disk.list_dir(log.directory))


def test_a_segment_that_retention_deletes_meanwhile_is_passed_over():
    log = written("P1 P1 P1a - | P1 P1a P1 P1c |", drops_aborted=True)
    work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=1)
    log.partition.deletion.delete_records(4)
    log.partition.deletion.remove_deleted(log.now_ms)
    assert [one.summary.base_offset for one in work.steps() if one is not None] == [4]
