"""Read-only access to a partition's directory: segments, snapshots and small files. A damaged file counts as missing."""

import pytest

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.directory import PartitionDirectory
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import decode_log_start, encode_log_start
from stablelog.log.indexes.summary import Summary
from stablelog.log.producer_state.snapshots import (
    decode_producers,
    decode_snapshot,
    encode_producers,
    encode_snapshot,
)
from tests.log.producer_state.test_producer_table import producers_of
from tests.log.timeline import DIRECTORY, Log


def several(*, clean=True):
    """A closed log of three segments, with open transactions at their ends."""
    log = Log(index_interval_bytes=0)
    for words in ("P1 P2", "P1c P3", "- P2 -"):
        log.write(words)
        if words != "- P2 -":
            log.partition.roll(log.now_ms)
            log.sync()
    log.partition.close(clean=clean)
    return log


@pytest.fixture
def log():
    return several()


def of(log):
    return PartitionDirectory(Listing(log.disk, DIRECTORY))


def path(offset, suffix):
    return DIRECTORY / f"{offset:020d}{suffix}"


def damage(log, offset, suffix):
    content = bytearray(log.disk.read_bytes(path(offset, suffix)))
    content[-1] ^= 1
    log.disk.damage(path(offset, suffix), bytes(content))


def test_segments_and_snapshots_are_listed_by_their_offsets(log):
    directory = of(log)
    assert directory.bases == [0, 2, 4]
    assert directory.snapshots == sorted(directory.snapshots)
    assert {2, 4, 7} <= set(directory.snapshots)
    assert directory.path(2, ".log") == path(2, ".log")


def test_the_summary_of_a_sealed_segment_is_read(log):
    assert (of(log).summary(2).base_offset, of(log).summary(2).end_offset) == (2, 4)
    assert of(log).summary(4) is None, "it grows"


def test_a_summary_that_is_damaged_or_of_another_segment_counts_as_missing(log):
    log.disk.write_atomic(path(0, ".summary"), Summary(2, 4).encode())
    damage(log, 2, ".summary")
    assert of(log).summary(0) is None
    assert of(log).summary(2) is None


def test_a_summary_of_a_later_release_is_refused(log):
    content = log.disk.read_bytes(path(2, ".summary"))
    log.disk.write_atomic(path(2, ".summary"), b"\0\2" + content[2:])
    with pytest.raises(UnknownFormatError):
        of(log).summary(2)


def test_leader_epochs_are_read_or_unknown(log):
    assert of(log).epochs().entries == [(0, 0)]
    log.disk.write_atomic(DIRECTORY / EPOCH_FILE, b"rubbish")
    assert of(log).epochs() is None
    log.disk.lose(DIRECTORY / EPOCH_FILE)
    assert of(log).epochs() is None


def test_the_producers_of_a_snapshot_are_read_with_the_summary_of_the_growing_segment(log):
    table, progress = of(log).producers(7)
    assert [one.producer_id for one in table] == [1, 2, 3]
    assert (progress.base_offset, progress.end_offset) == (4, 7)
    assert of(log).read_progress(7) == progress


def test_of_a_damaged_snapshot_kafkas_file_is_left(log):
    damage(log, 7, ".producers")
    directory = of(log)
    assert directory.producers(7) is None
    assert directory.read_progress(7) is None
    assert [one.producer_id for one in directory.kafka_producers(7, 5)] == [1, 2, 3]
    assert {one.used_ms for one in directory.kafka_producers(7, 5)} == {5}
    assert directory.has_readable_snapshot(7)
    damage(log, 7, ".snapshot")
    assert not of(log).has_readable_snapshot(7)


def test_the_crcs_of_a_log_file_are_those_of_its_summary_or_of_the_snapshots_that_were_read(log):
    directory = of(log)
    summary = directory.summary(2)
    assert directory.header_crcs(2) == {summary.log_size: summary.log_crc}
    assert directory.header_crcs(4) == {}, "no snapshot was read"
    directory.producers(7)
    progress = directory.read_progress(7)
    assert directory.header_crcs(4) == {progress.log_size: progress.log_crc}
    assert directory.header_crcs(2) == {summary.log_size: summary.log_crc}


def test_the_indexes_of_the_growing_segment_are_held_against_a_snapshot(log):
    directory = of(log)
    _, progress = directory.producers(7)
    offsets, times, txns = directory.indexes_up_to(progress)
    assert (len(offsets), len(times), txns) == (progress.index_size, progress.timeindex_size, b"")
    assert offsets


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".log"])
def test_indexes_that_do_not_match_the_snapshot_are_not_held(log, suffix):
    _, progress = of(log).producers(7)
    log.disk.damage(path(4, suffix), log.disk.read_bytes(path(4, suffix))[:-1])
    assert of(log).indexes_up_to(progress) is None
    log.disk.lose(path(4, suffix))
    assert of(log).indexes_up_to(progress) is None


def test_nothing_is_written(log):
    steps = log.disk.steps
    directory = of(log)
    for offset in directory.snapshots:
        directory.producers(offset)
    for base in directory.bases:
        directory.summary(base)
        directory.header_crcs(base)
    assert log.disk.steps == steps


CONTENTS = {
    "summary": (Summary(3, 9, log_size=7).encode(), Summary.decode),
    "producers": (b"".join(encode_producers(producers_of(9), Summary(0, 9))), decode_producers),
    "snapshot": (b"".join(encode_snapshot(producers_of(3))), lambda content: decode_snapshot(content, 0)),
    "log start": (encode_log_start(123), lambda content: decode_log_start(content, DIRECTORY)),
    "epochs": (LeaderEpochs([(1, 2), (4, 6)]).encode(), LeaderEpochs.decode),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_cut_anywhere_or_goes_on_is_refused_as_damage(name):
    content, decode = CONTENTS[name]
    decode(content)
    for end in range(len(content) - 2):
        with pytest.raises((DamageError, UnknownFormatError)):
            decode(content[:end])
    for more in (b"\0", content) if name != "epochs" else ():
        with pytest.raises((DamageError, UnknownFormatError)):
            decode(content + more)
    if name not in ("epochs", "log start"):
        for at in range(2, len(content)):
            with pytest.raises((DamageError, UnknownFormatError)):
                decode(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
