"""Repair: a damaged log is examined without a change, and cut without losing a byte."""

import copy
import errno
import random
from dataclasses import replace

import pytest

from stablelog.batch.header import HEADER
from stablelog.errors import DamageError, DiskError, UnavailableError
from stablelog.log import log_compaction
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.names import SEGMENT_SUFFIXES, VIEW_START_FILE
from stablelog.log.indexes.summary import Summary
from stablelog.log.recovery.damage import Expected
from stablelog.log.recovery.repair import examine, truncate_at_damage
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_faults import SimulatedCrash
from tests.log.compaction.test_policy import KeyedLog
from tests.log.test_damage import DIRECTORY, changed, headers, path_of, several_segments

EXPECTED = Expected(leader_epoch=1, gapless_epoch=0)


def damaged(which, place=1, at=30):
    """A closed log with a damaged batch, and the headers of all its batches."""
    log = several_segments(clean=True)
    base = log.bases[which]
    position, header = headers(log, path_of(base))[place]
    log.behind = [found for at, found in headers(log, path_of(base)) if at > position]
    for later in log.bases:
        if later > base:
            log.behind += [found for _, found in headers(log, path_of(later))]
    changed(log, path_of(base), position + at)
    log.path, log.position, log.offset, log.header = path_of(base), position, header.base_offset, header
    return log


def state(disk):
    return {path: disk.read_bytes(path) for path in disk.files()}


@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "middle", "growing"])
def test_a_cut_log_opens_and_what_was_cut_is_kept(which):
    log = damaged(which)
    contents = {base: log.disk.read_bytes(path_of(base)) for base in log.bases}
    with pytest.raises(DamageError):
        log.open(clean=False, recovery_point=log.end_offset).log.prove_segments()
    damage = examine(log.disk, DIRECTORY)
    cuts = truncate_at_damage(log.disk, DIRECTORY, damage)
    assert [one.path for one in cuts] == [log.path, *(path_of(base) for base in damage.later)]
    assert sum(one.size for one in cuts) == damage.size
    assert log.disk.read_bytes(log.path.with_suffix(".cut")) == contents[int(log.path.stem)][log.position :]
    for base in damage.later:
        assert log.disk.read_bytes(path_of(base, ".cut")) == contents[base]
    assert examine(log.disk, DIRECTORY) is None
    for clean in (True, False):
        log.partition = log.open(clean=clean, is_established=True, recovery_point=damage.end_offset)
        assert log.partition.end_offset == log.offset
        assert list(verify_directory(log.disk, DIRECTORY)) == []
        log.partition.close(clean=clean)
    log.partition = log.open(recovery_point=damage.end_offset)
    log.write("- P9 P9c")
    assert log.partition.end_offset == log.offset + 3


def test_a_log_whose_start_lies_behind_the_cut_begins_at_its_new_end():
    log = damaged(2)
    log.disk.damage(DIRECTORY / LOG_START_FILE, encode_log_start(log.offset + 3))
    truncate_at_damage(log.disk, DIRECTORY, examine(log.disk, DIRECTORY))
    log.partition = log.open(recovery_point=0)
    assert (log.partition.start_offset, log.partition.end_offset) == (log.offset, log.offset)


@pytest.mark.extended
@pytest.mark.parametrize("which", [0, -1], ids=["first", "growing"])
def test_a_crash_at_any_operation_of_a_cut_leaves_a_log_that_can_be_cut(which):
    done, crash_at = False, 0
    while not done:
        log, crash_at = damaged(which), crash_at + 1
        damage = examine(log.disk, DIRECTORY)
        log.disk.crash_at = log.disk.steps + crash_at
        try:
            truncate_at_damage(log.disk, DIRECTORY, damage)
            done = True
        except SimulatedCrash:
            log.disk.crash_at = None
            again = examine(log.disk, DIRECTORY)
            if again is not None:
                assert (again.path, again.position) == (log.path, log.position)
                truncate_at_damage(log.disk, DIRECTORY, again)
        log.disk.crash_at = None
        log.partition = log.open(recovery_point=log.offset)
        assert log.partition.end_offset == log.offset
        kept = b"".join(log.disk.read_bytes(path) for path in sorted(log.disk.files()) if ".cut" in path.name)
        assert len(kept) >= damage.size
    assert crash_at > 5


@pytest.mark.parametrize("name", [LOG_START_FILE, VIEW_START_FILE])
@pytest.mark.parametrize("content", [None, b"1\n0\nnonsense\n"], ids=["lost", "damaged"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole log", "damaged log"])
def test_no_log_is_cut_that_a_lost_or_damaged_start_offset_keeps_closed(name, content, is_whole):
    log = several_segments(clean=True) if is_whole else damaged(2)
    log.disk.write_atomic(DIRECTORY / name, content or encode_log_start(0))
    if content is None:
        log.disk.lose(DIRECTORY / name)
    before = state(log.disk)
    with pytest.raises(DamageError, match=rf"{name} is (missing|damaged)"):
        examine(
            log.disk, DIRECTORY, replace(EXPECTED, start_files=frozenset({LOG_START_FILE, VIEW_START_FILE}))
        )
    assert state(log.disk) == before


@pytest.mark.parametrize("name", [LOG_START_FILE, VIEW_START_FILE])
def test_a_log_that_ends_before_its_start_is_found(name):
    log = several_segments(clean=True)
    log.disk.write_atomic(DIRECTORY / name, encode_log_start(log.end_offset + 5))
    damage = examine(log.disk, DIRECTORY, EXPECTED)
    assert (damage.end_offset, damage.durable_end) == (log.end_offset, log.end_offset + 5)
    truncate_at_damage(log.disk, DIRECTORY, damage)
    assert examine(log.disk, DIRECTORY, EXPECTED) is None
    assert start(log, log.end_offset).end_offset == log.end_offset


def test_a_partition_without_a_log_file_has_nothing_to_cut():
    log = several_segments()
    for base in log.bases:
        log.disk.lose(path_of(base))
    with pytest.raises(DamageError, match="Restore its files"):
        examine(log.disk, DIRECTORY)


def start(log, recovery_point, *, clean=False):
    """Open it as a broker does whose directory is established."""
    return log.open(
        clean=clean,
        is_established=True,
        leader_epoch=1,
        gapless_epoch=0,
        recovery_point=recovery_point,
    )


def refused(log, recovery_point, *, clean=False):
    disk = log.disk
    log.disk = disk.copy() if hasattr(disk, "copy") else copy.deepcopy(disk)
    try:
        start(log, recovery_point, clean=clean).close(clean=False)
    except DamageError:
        return True
    finally:
        log.disk = disk
    return False


def check_repair(log, *, clean=False):
    """Whatever was done to the log: what a start refuses has a damage, and after the cut it starts and is whole."""
    expected = replace(EXPECTED, recovery_point=log.end_offset)
    is_refused = refused(log, log.end_offset, clean=clean)
    damage = examine(log.disk, DIRECTORY, expected)
    assert damage is not None or not is_refused
    if damage is None:
        return None
    assert damage.durable_end == log.end_offset
    point = min(log.end_offset, damage.end_offset)
    truncate_at_damage(log.disk, DIRECTORY, damage)
    assert examine(log.disk, DIRECTORY, replace(expected, recovery_point=point)) is None
    partition = start(log, point, clean=clean)
    assert partition.end_offset == damage.end_offset
    partition.close(clean=False)
    assert list(verify_directory(log.disk, DIRECTORY, recovery_point=point, gapless_epoch=0)) == []
    return damage


@pytest.mark.extended
@pytest.mark.parametrize(("number", "which"), [(0, 0), (1, 2), (2, -1)], ids=["first", "middle", "growing"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    ("bits", "stride"),
    [
        (0x01, 3),
        pytest.param(0x01, 1, marks=pytest.mark.night),
        pytest.param(0x80, 1, marks=pytest.mark.night),
    ],
)
def test_after_a_repair_of_any_changed_byte_a_start_opens_the_log(number, which, clean, bits, stride):
    """By day each byte in one of the three batches of a segment, and in each of the batches in one of the segments."""
    for turn, place in enumerate((0, 1, -1)):
        for at in range((number + turn) % stride, HEADER.size + 2, stride):
            log = several_segments(clean=clean)
            base = log.bases[which]
            position, header = headers(log, path_of(base))[place]
            changed(log, path_of(base), position + at, bits=bits)
            damage = check_repair(log, clean=clean)
            if damage is not None and damage.path == path_of(base):
                assert damage.position <= position, "the damaged batch is cut"
            if damage is not None and not 12 <= at < 16:
                assert (damage.position, damage.end_offset) == (position, header.base_offset), (
                    "and no whole one"
                )


@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "middle", "growing"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_log_file_that_ends_early_is_found_and_a_start_opens_what_is_left(which, clean):
    log = several_segments(clean=clean)
    base = log.bases[which]
    position, header = headers(log, path_of(base))[-2]
    log.disk.damage(path_of(base), log.disk.read_bytes(path_of(base))[:position])
    damage = check_repair(log, clean=clean)
    assert (damage.path, damage.position) == (path_of(base), position)
    assert damage.end_offset == header.base_offset


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_batch_that_is_missing_in_the_middle_is_found(clean):
    log = several_segments(clean=clean)
    path = path_of(log.bases[-1])
    (position, header), (following, _) = headers(log, path)[1:3]
    content = log.disk.read_bytes(path)
    log.disk.damage(path, content[:position] + content[following:])
    assert list(verify_directory(log.disk, DIRECTORY, gapless_epoch=0)) != []
    damage = check_repair(log, clean=clean)
    assert (damage.path, damage.position, damage.end_offset) == (path, position, header.base_offset)


@pytest.mark.parametrize("which", [1, 3, -1], ids=["second", "middle", "last"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("what", ["log", "all files"])
def test_a_segment_that_is_gone_is_found_and_its_offsets_are_named(which, clean, what):
    log = several_segments(clean=clean)
    base = log.bases[which]
    for suffix in SEGMENT_SUFFIXES if what == "all files" else (".log",):
        log.disk.lose(path_of(base, suffix))
    damage = check_repair(log, clean=clean)
    assert damage.end_offset == base


@pytest.mark.parametrize(
    "make", [several_segments, lambda clean: compacted_segments()], ids=["plain", "compacted"]
)
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", ["the next one", "all behind"])
def test_a_log_file_is_missed_whose_summary_is_there_and_the_one_in_front_has_none(make, clean, damage):
    log = make(clean=clean)
    first, second = log.bases[:2]
    end_offset = headers(log, path_of(first))[-1][1].next_offset
    (gone_but_for_its_summary if damage == "the next one" else all_gone_but_for_a_summary)(log, second)
    found = check_repair(log, clean=clean)
    assert (found.path, found.end_offset) == (path_of(first), end_offset)
    assert found.why == f"{path_of(second).name} is missing, and was durable"
    assert found.later == (tuple(log.bases[2:]) if damage == "the next one" else ())


def test_damage_before_the_logs_start_is_nobodys_loss():
    log = several_segments(clean=True)
    path = path_of(log.bases[2])
    changed(log, path_of(log.bases[0]), 70)
    changed(log, path, headers(log, path)[0][0] + 62)
    second = headers(log, path)[1][1]
    log.disk.write_atomic(DIRECTORY / LOG_START_FILE, encode_log_start(second.base_offset))
    assert examine(log.disk, DIRECTORY, EXPECTED) is None
    changed(log, path, headers(log, path)[1][0] + 62)
    assert examine(log.disk, DIRECTORY, EXPECTED).end_offset == second.base_offset


def test_a_log_that_has_changed_since_it_was_examined_is_not_cut():
    log = damaged(2)
    damage = examine(log.disk, DIRECTORY)
    log.disk.damage(log.path, log.disk.read_bytes(log.path) + b"more")
    before = state(log.disk)
    with pytest.raises(DamageError, match="has changed since it was examined"):
        truncate_at_damage(log.disk, DIRECTORY, damage)
    assert state(log.disk) == before


def compacted():
    """A closed compacted log: a sealed segment with gaps, and others behind it."""
    log = KeyedLog().write("a=1 b=1 a=2 c=1 b=2 d=1").write("e=1 f=1 e=2 g=1")
    log.compact()
    log.write("x=1 y=1", roll=False)
    log.end_offset = log.partition.end_offset
    log.partition.close(clean=False)
    return log


@pytest.mark.parametrize("place", [-1, -2])
def test_a_compacted_log_starts_after_a_cut_in_a_segment_with_gaps(place):
    log = compacted()
    path = path_of(0)
    found = headers(log, path)
    assert found[-1][1].next_offset > len(found), "compaction has left gaps"
    position, _ = found[place]
    changed(log, path, position + 62)
    damage = examine(log.disk, DIRECTORY, EXPECTED)
    assert (damage.position, damage.has_gaps) == (position, True)
    truncate_at_damage(log.disk, DIRECTORY, damage)
    assert list(verify_directory(log.disk, DIRECTORY, gapless_epoch=0)) == [], "before the next start, too"
    summary = Summary.decode(log.disk.read_bytes(path_of(0, ".summary")))
    kept = [header for _, header in headers(log, path)]
    assert (summary.base_offset, summary.end_offset) == (0, damage.end_offset)
    assert summary.stable_offset == damage.end_offset
    assert summary.max_timestamp == max(header.max_timestamp for header in kept if header.record_count)
    assert summary.record_count == sum(header.record_count for header in kept if not header.is_control)
    partition = start(log, damage.end_offset)
    assert partition.end_offset == damage.end_offset
    partition.close(clean=False)
    assert examine(log.disk, DIRECTORY, EXPECTED) is None


def test_a_compaction_that_was_putting_its_segment_in_place_is_finished_before_the_log_is_examined(
    monkeypatch,
):
    log = KeyedLog(segment_bytes=500)
    log.write("a=1 b=1 c=1 a=2 b=2 b=3 b=4").write("x=1 x=2 y=1 y=2 d=1").write("e=1 f=1", roll=False)

    def broken(*_words):
        raise DiskError("renaming failed", errno.EIO)

    with monkeypatch.context() as patch:
        patch.setattr(log_compaction, "finish_swap", broken)
        work = log.partition.compaction.begin_pass(log.now_ms, key_count_max=1000)
        with pytest.raises(UnavailableError):
            for cleaned in work.steps():
                if cleaned is not None:
                    log.partition.compaction.put_in_place(cleaned)
    end_offset = log.partition.end_offset
    log.partition.close(clean=False)
    changed(log, path_of(0), headers(log, path_of(0))[1][0] + 65)  # in the segment that is replaced
    assert examine(log.disk, DIRECTORY, replace(EXPECTED, recovery_point=end_offset)) is None
    assert not [path for path in log.disk.files() if path.suffix == ".swap"]
    assert start(log, end_offset).end_offset == end_offset


def test_damage_before_the_logs_start_in_the_growing_segment_is_nobodys_loss():
    log = several_segments(clean=True)
    path = path_of(log.bases[-1])
    (first, _), (_, second) = headers(log, path)[:2]
    changed(log, path, first + 62)
    log.disk.write_atomic(DIRECTORY / LOG_START_FILE, encode_log_start(second.base_offset))
    assert check_repair(log, clean=True) is None


# -- a repair that a crash interrupts -------------------------------------------------------------------------------


def compacted_segments():
    """A compacted log of four segments: two sealed ones with gaps, a sealed one, and the growing one."""
    log = KeyedLog().write("a=1 b=1 a=2 c=1 b=2 d=1").write("e=1 f=1 e=2 g=1").write("d=2 h=1")
    log.compact()
    log.write("x=1 y=1").write("p=1 q=1 p=2", roll=False)
    log.end_offset = log.partition.end_offset
    log.bases = [segment.base_offset for segment in log.partition.segments()]
    log.partition.close(clean=False)
    return log


def rotted(log, base, place=-1, at=62):
    changed(log, path_of(base), headers(log, path_of(base))[place][0] + at)


def shorter(log, base):
    path = path_of(base)
    log.disk.damage(path, log.disk.read_bytes(path)[: headers(log, path)[-1][0]])


def gone(log, base):
    for suffix in SEGMENT_SUFFIXES:
        log.disk.lose(path_of(base, suffix))


def gone_without_a_summary_in_front(log, base):
    gone(log, base)
    log.disk.lose(path_of(max(one for one in log.bases if one < base), ".summary"))
    for path in list(log.disk.files()):
        if path.suffix in (".snapshot", ".producers"):
            log.disk.lose(path)


def gone_but_for_its_summary(log, base):
    log.disk.lose(path_of(base))
    log.disk.damage(path_of(max(one for one in log.bases if one < base), ".summary"), b"rotted")


def all_gone_but_for_a_summary(log, base):
    gone_but_for_its_summary(log, base)
    for one in log.bases:
        if one > base:
            gone(log, one)


def rotted_without_a_summary(log, base):
    rotted(log, base)
    log.disk.lose(path_of(base, ".summary"))


DAMAGES = {
    "rotted": (rotted, 0),
    "an offset has changed": (lambda log, base: rotted(log, base, place=2, at=7), 0),
    "an odd offset": (lambda log, base: rotted(log, base, place=1, at=7), 0),
    "rotted without a summary": (rotted_without_a_summary, 0),
    "shorter": (shorter, 0),
    "the next one is gone": (gone, 1),
    "the next one is gone, without a summary": (gone_without_a_summary_in_front, 1),
    "all behind it are gone": (lambda log, base: [gone(log, one) for one in log.bases if one >= base], 1),
    "the next one is gone but for its summary": (gone_but_for_its_summary, 1),
    "all behind it are gone but for a summary": (all_gone_but_for_a_summary, 1),
    "rotted, the growing one": (rotted, -1),
    "rotted, before the growing one": (rotted, -2),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("is_tried", [True, False], ids=["started", "not started"])
def test_a_repair_that_a_crash_interrupts_anywhere_is_finished_by_the_next_one(how, clean, is_tried):
    log = compacted_segments()
    damage, which = DAMAGES[how]
    damage(log, log.bases[which])
    expected = replace(EXPECTED, recovery_point=log.end_offset)
    damaged_disk, wanted = log.disk, examine(log.disk, DIRECTORY, expected)
    kept = damaged_disk.read_bytes(wanted.path)[: wanted.position]
    crash_at, done = 0, False
    while not done:
        crash_at += 1
        disk = copy.deepcopy(damaged_disk)
        found = examine(disk, DIRECTORY, expected)
        disk.crash_at = disk.steps + crash_at
        try:
            truncate_at_damage(disk, DIRECTORY, found)
            done = True  # and the recovery point was not lowered
        except SimulatedCrash:
            pass
        disk.crash_at = None
        for seed in (None, 0, 1):
            log.disk = copy.deepcopy(disk) if seed is None else disk.crash(random.Random(seed))
            if is_tried and opens(log, log.end_offset, clean=clean):
                continue  # nothing was cut, and a start has passed over the damage
            again = examine(log.disk, DIRECTORY, expected)
            assert again.end_offset == wanted.end_offset
            truncate_at_damage(log.disk, DIRECTORY, again)
            repaired = replace(expected, recovery_point=wanted.end_offset)
            for was_clean in (clean, False):
                assert examine(log.disk, DIRECTORY, repaired) is None
                assert opens(log, wanted.end_offset, clean=was_clean), (
                    f"after a crash at operation {crash_at}"
                )
            assert log.disk.read_bytes(wanted.path) == kept
            assert list(verify_directory(log.disk, DIRECTORY, gapless_epoch=0)) == []
    assert crash_at > 5


@pytest.mark.parametrize("how", [how for how in DAMAGES if "summary" in how])
def test_what_was_durable_is_known_until_a_cut_is_done(how):
    """Where the broker has recorded no end of it, the files tell, and the cut removes them."""
    log = compacted_segments()
    damage, which = DAMAGES[how]
    damage(log, log.bases[which])
    wanted = examine(log.disk, DIRECTORY, EXPECTED)
    for crash_at in range(1, 60):
        disk = copy.deepcopy(log.disk)
        disk.crash_at = disk.steps + crash_at
        try:
            truncate_at_damage(disk, DIRECTORY, wanted)
            break
        except SimulatedCrash:
            disk.crash_at = None
        again = examine(disk, DIRECTORY, EXPECTED)
        if again is not None:
            assert again.durable_end == wanted.durable_end, f"after a crash at operation {crash_at}"
    assert crash_at > 5


def opens(log, end_offset, *, clean):
    """Whether a start opens the log, which ends here."""
    try:
        partition = start(log, end_offset, clean=clean)
    except DamageError:
        return False
    assert partition.end_offset == end_offset
    partition.close(clean=False)
    return True


# -- what a start passes over ---------------------------------------------------------------------------------------


def without_snapshots(log):
    """Lose all snapshots, so that a start reads the log from its beginning."""
    for path in list(log.disk.files()):
        if path.suffix in (".snapshot", ".producers"):
            log.disk.lose(path)


def batch_in(log, base, *, is_control):
    """The position and header of the second batch of a kind in a segment."""
    return [found for found in headers(log, path_of(base)) if found[1].is_control is is_control][1]


def is_opened(log, *, clean):
    """Whether a start opens the log as it is. Nothing is read from it, and what the start writes is forgotten."""
    disk, log.disk = log.disk, copy.deepcopy(log.disk)
    known = {"is_established": True, "leader_epoch": 1, "gapless_epoch": 0, "recovery_point": log.end_offset}
    try:
        opened = log.open(clean=clean, prove=False, **known)
        assert opened.end_offset == log.end_offset
    except DamageError:
        return False
    finally:
        log.disk = disk
    return True


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize(
    ("at", "is_control"),
    [*((at, is_control) for at in (5, 30, 65) for is_control in (False, True)), (76, True)],
    ids=lambda value: {False: "records", True: "marker"}.get(value, value),
)  # 76: the marker's coordinator epoch
@pytest.mark.parametrize("is_read", [False, True], ids=["unread", "read"])
def test_what_a_start_serves_is_not_refused(clean, which, at, is_control, is_read):
    log = several_segments(clean=clean)
    path = path_of(log.bases[which])
    position, header = batch_in(log, log.bases[which], is_control=is_control)
    changed(log, path, position + at)
    if is_read:
        without_snapshots(log)
    damage = examine(log.disk, DIRECTORY, replace(EXPECTED, recovery_point=log.end_offset))
    assert (damage.path, damage.position, damage.end_offset) == (path, position, header.base_offset)
    assert damage.size
    assert damage.refused is None
    is_served = not is_read or (at == 65 and not is_control)
    assert (damage.is_passed_over, is_opened(log, clean=clean)) == (is_served, is_served)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("at", [5, 30, 65])
@pytest.mark.parametrize("is_read", [False, True], ids=["unread", "read"])
def test_the_damage_that_a_start_refuses_is_found_behind_what_it_passes_over(clean, at, is_read):
    log = several_segments(clean=clean)
    first, last = log.bases[1], log.bases[-2]
    changed(log, path_of(first), batch_in(log, first, is_control=False)[0] + at)
    shorter(log, last)
    if is_read:  # by the start behind the cut, because the only snapshot is cut
        for base in log.bases[:-1]:
            for suffix in (".snapshot", ".producers"):
                log.disk.lose(path_of(base, suffix))
    expected = replace(EXPECTED, recovery_point=log.end_offset)
    damage = found = examine(log.disk, DIRECTORY, expected)
    assert found.path == path_of(first)
    assert found.is_passed_over == (not is_read or at == 65)
    if found.is_passed_over:
        damage = found.refused
        assert damage.path == path_of(last)
    assert damage.durable_end == log.end_offset
    assert damage.size
    truncate_at_damage(log.disk, DIRECTORY, damage)
    log.end_offset = damage.end_offset
    assert is_opened(log, clean=clean)
    behind = examine(log.disk, DIRECTORY, replace(expected, recovery_point=damage.end_offset))
    assert (behind is not None) == found.is_passed_over
    assert behind is None or (behind.is_passed_over and behind.refused is None)


@pytest.mark.parametrize("at", [5, 30, 65])
def test_a_growing_segment_from_which_nothing_can_be_read_is_not_passed_over(at):
    log = several_segments(clean=True)
    path = path_of(log.bases[-1])
    changed(log, path, headers(log, path)[1][0] + at)
    assert is_opened(log, clean=True), "it begins at the snapshot of the stop"
    damage = examine(log.disk, DIRECTORY, EXPECTED)
    assert damage.is_passed_over == (at == 65)
    log.disk.damage(path, log.disk.read_bytes(path)[:-1])
    assert not examine(log.disk, DIRECTORY, EXPECTED).is_passed_over


@pytest.mark.sampled(60)
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("seed", range(80))
def test_a_start_opens_a_log_whose_damage_is_passed_over_and_no_other(clean, seed):
    chance = random.Random(seed)
    log = compacted_segments() if chance.random() < 0.5 else several_segments(clean=clean)
    for _ in range(chance.choice([1, 1, 2])):
        path = path_of(chance.choice(log.bases[:-1]))
        changed(log, path, chance.choice(headers(log, path))[0] + chance.choice([5, 8, 30, 64, 65]))
        if chance.random() < 0.3:
            suffix = chance.choice([".summary", ".index", ".timeindex"])
            log.disk.lose(path_of(chance.choice(log.bases), suffix))
        if chance.random() < 0.3:
            without_snapshots(log)
        if chance.random() < 0.3:
            log.disk.lose(DIRECTORY / EPOCH_FILE)
        elif chance.random() < 0.5:
            later = LeaderEpochs([(0, 0), (chance.choice([1, 2]), log.bases[-1])])
            log.disk.write_atomic(DIRECTORY / EPOCH_FILE, later.encode())
    damage = examine(log.disk, DIRECTORY, replace(EXPECTED, recovery_point=log.end_offset))
    is_served = damage is None or (damage.is_passed_over and damage.refused is None)
    assert is_opened(log, clean=clean) == is_served


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize(("bits", "is_possible"), [(1, True), (2, False), (3, False)])
@pytest.mark.parametrize(
    ("epochs", "is_read"),
    [(None, True), ([(0, 0)], False), ([(0, 0), (1, 9)], False), ([(0, 0), (2, 9)], True)],
    ids=["lost", "known", "of the last start", "of a later start"],
)
def test_a_start_refuses_a_leader_epoch_that_has_not_begun_if_it_reads_it(
    clean, which, bits, is_possible, epochs, is_read
):
    """It reads the epochs from the headers where their file is lost, or names one that has not begun. The last is 1."""
    log = several_segments(clean=clean)
    path = path_of(log.bases[which])
    changed(log, path, batch_in(log, log.bases[which], is_control=False)[0] + 15, bits=bits)
    if epochs is None:
        log.disk.lose(DIRECTORY / EPOCH_FILE)
    else:
        log.disk.write_atomic(DIRECTORY / EPOCH_FILE, LeaderEpochs(epochs).encode())
    damage = examine(log.disk, DIRECTORY, replace(EXPECTED, recovery_point=log.end_offset))
    assert damage.path == path
    is_served = is_possible or not is_read
    assert (damage.is_passed_over, is_opened(log, clean=clean)) == (is_served, is_served)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("at", [5, 30])
def test_a_start_reads_what_stands_before_snapshots_that_are_damaged(clean, is_damaged, at):
    log = several_segments(clean=clean)
    path = path_of(log.bases[2])
    changed(log, path, batch_in(log, log.bases[2], is_control=False)[0] + at)
    for snapshot in [path for path in log.disk.files() if path.suffix in (".snapshot", ".producers")]:
        if is_damaged:
            changed(log, snapshot, 7)
    damage = examine(log.disk, DIRECTORY, replace(EXPECTED, recovery_point=log.end_offset))
    assert damage.path == path
    assert (damage.is_passed_over, is_opened(log, clean=clean)) == (not is_damaged, not is_damaged)
