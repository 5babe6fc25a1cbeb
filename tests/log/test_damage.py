"""Lost and damaged files of a partition: the answer is right, or it is refused by name. Nothing is lost in silence."""

import random

import pytest

from stablelog.batch.header import HEADER, read_header
from stablelog.errors import DamageError, UnprovenError
from stablelog.log.model import Isolation
from stablelog.log.recovery.tail import batches_after_damage
from tests.log.timeline import DIRECTORY, Log

COMMITTED, ALL = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
WORDS = "P1 P2 P1 P1a P3 P2a - P3c P1 P1c " * 6


def several_segments(*, clean=False, words=WORDS):
    """A closed log of several segments."""
    log = Log(segment_bytes=700, index_interval_bytes=100).write(words)
    log.end_offset = log.partition.end_offset
    log.bases = [segment.base_offset for segment in log.partition.segments()]
    assert len(log.bases) > 4
    log.partition.close(clean=clean)
    return log


def path_of(base, suffix=".log"):
    return DIRECTORY / f"{base:020d}{suffix}"


def changed(log, path, at, *, bits=0x01):
    content = bytearray(log.disk.read_bytes(path))
    content[at] ^= bits
    log.disk.damage(path, bytes(content))


def headers(log, path):
    """(position, header) of every batch."""
    content, position, found = log.disk.read_bytes(path), 0, []
    while position < len(content):
        found.append((position, read_header(content, position)))
        position += found[-1][1].size
    return found


# -- lost segments --------------------------------------------------------------------------------------------------


# -- the log's start ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_of_the_segments_behind_a_truncation(seed):
    for end in range(0, 54, 7):
        log = several_segments()
        log.partition = log.open()
        log.partition.replication.truncate_to(end)
        wanted = [base for base in log.bases if base <= end]
        log.disk = log.disk.crash(random.Random(seed))
        names = log.disk.list_dir(DIRECTORY)
        assert [int(name[:20]) for name in names if name.endswith(".log")] == wanted
        assert not [name for name in names if name[0] == "0" and int(name[:20]) > end]
        assert path_of(wanted[-1], ".summary").name not in names, "it grows"
        log.partition = log.open(recovery_point=end)
        assert log.partition.end_offset == end


# -- damage in the growing log --------------------------------------------------------------------------------------


def growing(clean=False):
    log = Log().write("- P1 P1 P1c - P2 P2a - -")
    log.partition.close(clean=clean)
    return log


def damaged_batch(log, place, at=30):
    """Change a byte of a batch of the only segment. Returns its offset and the bytes from there on."""
    position, header = headers(log, path_of(0))[place]
    changed(log, path_of(0), position + at)
    return header.base_offset, log.disk.read_bytes(path_of(0))[position:]


def test_damage_before_the_recorded_end_refuses_the_partition():
    log = growing()
    offset, _ = damaged_batch(log, 4)
    before = log.disk.read_bytes(path_of(0))
    with pytest.raises(DamageError, match="records up to offset 4 were durable") as raised:
        log.open(recovery_point=offset + 1)
    assert str(path_of(0)) in str(raised.value)
    assert "stablelog repair" in str(raised.value)
    assert log.disk.read_bytes(path_of(0)) == before


def test_damage_behind_the_recorded_end_is_cut_and_what_is_cut_is_kept():
    log = growing()
    offset, rest = damaged_batch(log, 4)
    log.partition = log.open(recovery_point=offset)
    (cut,) = log.partition.removed_tails
    assert (cut.path, cut.offset, cut.size) == (path_of(0), offset, len(rest))
    assert log.disk.read_bytes(path_of(0, ".cut")) == rest
    assert f"{path_of(0)}: {len(rest)} bytes at byte {cut.position}, from offset {offset} on" in str(cut)
    assert log.partition.end_offset == offset
    log.reopen(clean=False)
    assert log.partition.removed_tails == ()
    assert log.disk.read_bytes(path_of(0, ".cut")) == rest


def test_a_second_cut_does_not_replace_what_the_first_has_kept():
    log = growing()
    _, first = damaged_batch(log, 6)
    log.partition = log.open(recovery_point=0)
    log.partition.close(clean=False)
    _, second = damaged_batch(log, 4)
    log.partition = log.open(recovery_point=0)
    assert log.disk.read_bytes(path_of(0, ".cut")) == first
    assert log.disk.read_bytes(path_of(0, ".cut.1")) == second
    assert log.partition.removed_tails[0].kept == path_of(0, ".cut.1")


def test_a_crash_while_the_cut_bytes_are_kept_leaves_one_whole_copy():
    log = growing()
    _, rest = damaged_batch(log, 3)
    log.disk.write_atomic(path_of(0, ".cut"), rest[:7])
    log.partition = log.open(recovery_point=0)
    assert log.disk.read_bytes(path_of(0, ".cut")) == rest
    assert not log.disk.exists(path_of(0, ".cut.1"))


def test_without_a_recorded_end_damage_is_cut_only_where_no_whole_batch_follows():
    log = growing()
    before = log.disk.read_bytes(path_of(0))
    offset, _ = damaged_batch(log, 4)
    with pytest.raises(DamageError, match=rf"A whole batch of offset {offset + 1} follows"):
        log.open(recovery_point=None)
    log.disk.damage(path_of(0), before)
    offset, rest = damaged_batch(log, -1)
    log.partition = log.open(recovery_point=None)
    assert log.partition.end_offset == offset
    assert log.disk.read_bytes(path_of(0, ".cut")) == rest


@pytest.mark.parametrize("at", [0, 8, 11, 16, 17, 25, 45, 60])
def test_damage_anywhere_in_a_header_is_found_and_the_batches_behind_it_too(at):
    """A base offset, which no CRC covers, and a length, which hides where the next batch begins, among others."""
    log = growing()
    offset, _ = damaged_batch(log, 2, at)
    with pytest.raises(DamageError, match="follows at byte"):
        log.open(recovery_point=None, gapless_epoch=0)
    with pytest.raises(DamageError, match="were durable"):
        log.open(recovery_point=log.partition.end_offset, gapless_epoch=0)
    log.partition = log.open(recovery_point=offset, gapless_epoch=0)
    assert log.partition.end_offset == offset


def test_a_last_batch_with_another_offset_is_refused():
    log = growing()
    damaged_batch(log, -1, 7)
    with pytest.raises(DamageError, match=r"begins at offset \d+, but this offset must be"):
        log.open(recovery_point=log.partition.end_offset, gapless_epoch=0)


def test_a_segment_of_another_program_may_have_gaps():
    log = growing()
    content = bytearray(log.disk.read_bytes(path_of(0)))
    position, header = headers(log, path_of(0))[-1]
    content[position : position + 8] = (header.base_offset + 5).to_bytes(8, "big")
    log.disk.damage(path_of(0), bytes(content))
    log.partition = log.open(recovery_point=None, gapless_epoch=1)
    assert log.partition.end_offset == header.base_offset + 6


def test_zeros_in_the_middle_of_a_coordinators_log_do_not_take_what_follows():
    """Eight zero bytes, as a lost sector leaves them: what was acknowledged behind them is not cut in silence."""
    log = growing()
    content = bytearray(log.disk.read_bytes(path_of(0)))
    position, header = headers(log, path_of(0))[3]
    content[position + 20 : position + 28] = bytes(8)
    log.disk.damage(path_of(0), bytes(content))
    for recovery_point in (None, header.base_offset + 1, log.partition.end_offset):
        with pytest.raises(DamageError, match=str(path_of(0))):
            log.open(recovery_point=recovery_point)


def test_whole_batches_are_found_behind_any_damage():
    log = growing()
    whole = headers(log, path_of(0))
    content = log.disk.read_bytes(path_of(0))
    for begin in range(0, len(content), 7):
        log.disk.damage(path_of(0), content[:begin] + b"\xff\x02" + content[begin + 2 :])
        file = log.disk.open(path_of(0))
        position = max((at for at, _ in whole if at <= begin), default=0)
        wanted = [(at, header.base_offset) for at, header in whole if at > begin + 1]
        found = [(at, header.base_offset) for at, header in batches_after_damage(file, position, 0)]
        assert found == wanted, begin


def test_a_log_that_was_closed_and_ends_early_at_a_batch_is_refused():
    log = growing(clean=True)
    position, _ = headers(log, path_of(0))[-2]
    log.disk.damage(path_of(0), log.disk.read_bytes(path_of(0))[:position])
    with pytest.raises(DamageError, match="ends at offset"):
        log.open(clean=True)


def test_segments_behind_a_cut_are_kept():
    log = several_segments()
    for base in log.bases:  # as if nothing but the log files had reached the disk
        for suffix in (".summary", ".index", ".timeindex", ".txnindex"):
            log.disk.lose(path_of(base, suffix))
    for path in [path for path in log.disk.files() if path.suffix in (".producers", ".snapshot")]:
        log.disk.lose(path)
    contents = {base: log.disk.read_bytes(path_of(base)) for base in log.bases}
    changed(log, path_of(log.bases[2]), 30)
    with pytest.raises(DamageError):
        log.open(recovery_point=log.bases[3])
    with pytest.raises(DamageError, match="is not recorded"):
        log.open(recovery_point=None)
    log.partition = log.open(recovery_point=log.bases[1])
    assert log.partition.end_offset == log.bases[2]
    for base in log.bases[3:]:
        assert log.disk.read_bytes(path_of(base, ".cut")) == contents[base]
    assert [cut.path for cut in log.partition.removed_tails] == [path_of(base) for base in log.bases[2:]]


def test_the_first_batch_of_a_segment_behind_the_damage_is_missed_too():
    """Where no recovery point is known, one whole batch behind the damage says that the log was longer."""
    log = Log(segment_bytes=1).write("- - -", sync=False)
    bases = [segment.base_offset for segment in log.partition.segments()]
    assert bases == [0, 1, 2]
    log.partition.close(clean=False)
    for path in [path for path in log.disk.files() if path.suffix != ".log"]:
        log.disk.lose(path)
    changed(log, path_of(0), 30)
    before = log.disk.read_bytes(path_of(1))
    with pytest.raises(DamageError, match=f"{path_of(1)}.*A whole batch of offset 1 follows at byte 0"):
        log.open(recovery_point=None)
    for base in bases[1:]:
        changed(log, path_of(base), 30)
    log.partition = log.open(recovery_point=None)
    assert log.partition.end_offset == 0
    assert log.disk.read_bytes(path_of(1, ".cut")) != before


# -- sealed segments, and what was taken on trust -------------------------------------------------------------------


def read_everything(log, isolation):
    found, start = [], log.partition.start_offset
    while True:
        read = log.partition.read(start, 400, isolation)
        if not read.buffers:
            return found
        found.append((b"".join(read.buffers), read.aborted))
        start = read.end_offset


def read_proven(log, start, isolation):
    """A read that proves what it needs, as the broker does."""
    while True:
        try:
            return b"".join(log.partition.read(start, 100, isolation).buffers)
        except UnprovenError as unproven:
            for _ in unproven.prove():
                pass


def test_a_proof_names_the_batch_that_is_damaged():
    log = several_segments(clean=True)
    position, header = headers(log, path_of(log.bases[2]))[1]
    changed(log, path_of(log.bases[2]), position + 46)
    log.partition = log.open(clean=True, prove=False)
    with pytest.raises(
        DamageError, match=rf"the CRC of the batch at offset {header.base_offset}, byte {position}, does not"
    ):
        log.partition.log.prove_segments()
    with pytest.raises(DamageError, match="Restore the file"):
        log.partition.read(log.bases[2], 100, ALL)
    assert read_proven(log, log.bases[3], ALL)


def test_what_this_process_has_written_needs_no_proof():
    log = Log(segment_bytes=700, index_interval_bytes=100).write(WORDS)
    assert all(segment.is_proven for segment in log.partition.segments())
    assert read_everything(log, COMMITTED)


def test_a_proof_goes_in_pieces(monkeypatch):
    from stablelog.log.segments import proof

    log = several_segments(clean=True)
    monkeypatch.setattr(proof, "CHUNK_SIZE", 2 * HEADER.size)
    monkeypatch.setattr(proof, "PIECE_SIZE", HEADER.size)
    log.partition = log.open(clean=True, prove=False)
    segment = log.partition.segments()[0]
    assert sum(1 for _ in segment.prove()) > 2
    assert segment.is_proven


def test_a_log_file_that_was_cut_short_is_refused():
    log = several_segments(clean=True)
    path = path_of(log.bases[1])
    log.disk.damage(path, log.disk.read_bytes(path)[:-1])
    with pytest.raises(DamageError, match=path.name):
        log.open(clean=True)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_damaged_offset_index_is_rebuilt_also_where_a_transaction_is_open(clean):
    """A start looks up where the transaction began, before the log file is proven."""
    log = several_segments(clean=clean, words=WORDS + "P7 " + "- " * 40)
    (begun,) = (one.txn_first_offset for one in log.partition.log.producers if one.producer_id == 7)
    base = max(base for base in log.bases if base <= begun)
    assert base != log.bases[-1]
    changed(log, path_of(base, ".index"), 7)
    log.partition = log.open(clean=clean)
    log.partition.log.prove_segments()
    assert read_everything(log, ALL)


def test_a_changed_leader_epoch_in_the_growing_segment_is_refused():
    log = several_segments()
    changed(log, path_of(log.bases[-1]), 15, bits=0x01)
    with pytest.raises(DamageError, match="leader epoch 0, but only 1 to 1 are possible"):
        log.open(is_established=True, leader_epoch=1, recovery_point=log.end_offset)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_snapshot_does_not_hide_a_changed_offset_before_it(clean):
    log = several_segments()
    log.partition = log.open()
    log.write("P1 - - ")
    log.partition.log.take_snapshot()
    log.sync()
    log.partition.close(clean=clean)
    changed(log, path_of(log.bases[-1]), 0)
    with pytest.raises(DamageError, match=f"{log.bases[-1]:020d}.log"):
        log.open(clean=clean)
