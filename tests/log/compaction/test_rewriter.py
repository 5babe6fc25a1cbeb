"""Segments that are rewritten: what of them stays, in which bytes."""

from stablelog.batch.header import Codec
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.log.compaction import rewriter
from stablelog.log.files.names import LOG
from stablelog.testing.sim_disk import SimDisk
from tests.log.compaction.test_policy import KeyedLog
from tests.log.test_damage import path_of
from tests.log.timeline import DIRECTORY


def test_compaction_replaces_a_segment_of_which_all_goes_and_leaves_one_of_which_all_stays():
    log = KeyedLog(segment_bytes=400)
    log.write("a=1 b=1 a=2 b=2 a=3").write("c=1 d=1 e=1 f=1 g=1").write("a=4 b=3 h=1 i=1 j=1")
    before = log.partition.segments()
    log.compact()
    after = log.partition.segments()
    assert [one.base_offset for one in after] == [one.base_offset for one in before] == [0, 5, 10, 15]
    assert [one is other for one, other in zip(after, before, strict=True)] == [False, True, True, True]
    assert log.words() == "4:-. 5:c=1 6:d=1 7:e=1 8:f=1 9:g=1 10:a=4 11:b=3 12:h=1 13:i=1 14:j=1"


def test_compaction_writes_the_same_in_pieces_of_any_size(monkeypatch):
    found = set()
    for write_size in (1, 100, 200, 1 << 20):
        monkeypatch.setattr(rewriter, "WRITE_SIZE", write_size)
        log = KeyedLog().write("a=1 b=1 a=2 P1:c=1 d=1 P1a e=1 P2:f=1 P2c g=1").write("a=3 h=1 i=1")
        log.compact()
        found.add((log.words(), log.disk.read_bytes(path_of(0))))
    assert len(found) == 1


def test_a_batch_keeps_its_offsets_and_its_bytes_but_for_what_is_gone():
    log = KeyedLog()
    headers = (("name \u00e9", b"\xff\x00"), ("null", None))
    log.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=Codec.ZSTD, headers=headers)
    before, _ = log.batches()[0]
    log.write("a=4 c=4")
    log.compact()
    header, batch = log.batches()[0]
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (0, 2, before.leader_epoch)
    assert header.codec is Codec.ZSTD
    assert decode_records(batch) == [Record(1, log.now_ms + 1, b"b", b"2", headers)]
    assert header.max_timestamp == log.now_ms + 1


def test_segments_without_any_batch_become_one_batch_without_records():
    """As Kafka's compaction leaves them. Nothing tells an epoch of their offsets."""
    log = KeyedLog(segment_bytes=1)
    log.partition.close()
    disk = log.disk = SimDisk()
    disk.make_dir(DIRECTORY)
    last = encode_batch([Record(0, log.now_ms, b"a", b"1")], base_offset=20, leader_epoch=0)
    for base, content in ((0, b""), (10, b""), (20, last)):
        disk.write_atomic(DIRECTORY / f"{base:020d}{LOG}", content)
    log.partition = log.open(clean=True, recovery_point=None)
    log.write("b=1")
    log.compact()
    found = [
        (header.base_offset, header.last_offset, header.leader_epoch, header.record_count)
        for header, _ in log.batches()
    ]
    assert found == [(0, 19, -1, 0), (20, 20, 0, 1), (21, 21, 0, 1)]
    log.reopen(recovery_point=None)
    assert log.words() == "19:-. 20:a=1 21:b=1"
