"""What a start takes on trust: the start and an examination judge a damage alike."""

import pytest

from stablelog.errors import DamageError
from stablelog.log.recovery.damage import Expected
from stablelog.log.recovery.repair import examine
from tests.log.accounts import copy_of
from tests.log.test_damage import DIRECTORY, changed, headers, path_of, several_segments

LEADER_EPOCH_AT = 12
LOST = {
    "nothing": (),
    "its index": (".index",),
    "its time index": (".timeindex",),
    "its summary": (".summary",),
    "index and summary": (".index", ".summary"),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
@pytest.mark.parametrize("byte", [LEADER_EPOCH_AT, LEADER_EPOCH_AT + 3], ids=["far too late", "too late"])
def test_a_sealed_segment_whose_leader_epoch_has_changed_is_refused_if_a_start_reads_it(lost, byte):
    """No CRC of a batch covers its leader epoch: only the summary, and the epochs of the starts, tell of the change."""
    log = several_segments(clean=True)
    base = log.bases[1]
    position, _ = headers(log, path_of(base))[1]
    changed(log, path_of(base), position + byte)
    for suffix in lost:
        log.disk.lose(path_of(base, suffix))
    before = {one: log.disk.read_bytes(path_of(one)) for one in log.bases}
    damage = examine(copy_of(log.disk), DIRECTORY, Expected(log.end_offset, leader_epoch=1, gapless_epoch=0))
    assert damage.path == path_of(base)
    assert damage.is_passed_over == (not lost)
    known = {"clean": False, "is_established": True, "recovery_point": log.end_offset, "leader_epoch": 1}
    if not lost:
        log.open(prove=False, **known).close(clean=False)
        return
    with pytest.raises(DamageError, match="leader epoch"):
        log.open(prove=False, **known)
    assert {one: log.disk.read_bytes(path_of(one)) for one in log.bases} == before
    if ".summary" not in lost:
        assert log.disk.exists(path_of(base, ".summary")), "and the summary still tells of it"


def test_a_replayed_segment_whose_last_leader_epoch_has_changed_is_refused():
    """The changed epoch is one that a batch may have there: only the summary tells of the change."""
    log = several_segments(clean=True)
    base = log.bases[1]
    position, _ = headers(log, path_of(base))[-1]
    changed(log, path_of(base), position + LEADER_EPOCH_AT + 3)
    log.disk.lose(path_of(base, ".index"))
    expected = Expected(log.end_offset, leader_epoch=1, gapless_epoch=0)
    assert not examine(copy_of(log.disk), DIRECTORY, expected).is_passed_over
    with pytest.raises(DamageError, match="has changed since they were durable"):
        log.open(prove=False, clean=True, is_established=True, leader_epoch=1)


def test_a_replay_begins_where_our_snapshot_can_be_read_and_an_examination_knows_it():
    """A start prefers an older snapshot of ours to a newer one of Kafka's, so it reads the segments between them."""
    log = several_segments(clean=True)
    base, following = log.bases[1], log.bases[2]
    for later in log.bases[2:]:
        log.disk.lose(path_of(later, ".producers"))
    log.disk.lose(path_of(log.end_offset, ".producers"))
    position, _ = headers(log, path_of(base))[0]
    changed(log, path_of(base), position + LEADER_EPOCH_AT + 3)
    assert log.disk.exists(path_of(following, ".snapshot"))
    damage = examine(copy_of(log.disk), DIRECTORY, Expected(log.end_offset, leader_epoch=1, gapless_epoch=0))
    assert (damage.path, damage.is_passed_over) == (path_of(base), False)
    with pytest.raises(DamageError):
        log.open(prove=False, clean=True, is_established=True, leader_epoch=1)
