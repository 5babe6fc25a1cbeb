"""Which segments can be copied to the object store, and how a manifest describes a copied one."""

import uuid
from dataclasses import replace

import pytest

from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.indexes.summary import Summary
from stablelog.tier.copy_rules import copied_segment, copyable, epochs_up_to, other_files, view_start_of
from stablelog.tier.index_object import IndexKind
from stablelog.tier.records import SegmentState
from tests.commit_order.committed_log import Log as CommittedLog
from tests.log.timeline import DIRECTORY, NOW_MS, Log

SUMMARY = Summary(100, 200, max_timestamp=NOW_MS, log_size=1000)


def rolled(*parts, sync=True):
    """A log with a sealed segment for each of these parts, and an empty growing one."""
    log = Log()
    for words in parts:
        log.write(words, sync=False)
        log.partition.roll(log.now_ms)
    if sync:
        log.sync()
    return log


def bases(log, end_offset=0, stable_offset=None):
    stable = log.stable_offset if stable_offset is None else stable_offset
    return [one.base_offset for one in copyable(log.partition.log.segments, end_offset, stable)]


def test_sealed_durable_segments_are_copied_oldest_first_and_the_growing_one_is_not():
    log = rolled("- -", "- -")
    log.write("-")
    assert bases(log) == [0, 2]


def test_nothing_is_copied_that_is_in_the_store():
    log = rolled("- -", "- -", "-")
    assert bases(log, end_offset=2) == [2, 4]
    assert bases(log, end_offset=5) == []


def test_a_segment_is_copied_whole_if_the_store_ends_in_its_middle():
    assert bases(rolled("- -", "- -"), end_offset=1) == [0, 2]


def test_a_segment_that_is_not_durable_is_not_copied():
    assert bases(rolled("-", sync=False), stable_offset=1) == []


@pytest.mark.parametrize(("stable_offset", "copied"), [(1, []), (2, [0]), (3, [0]), (4, [0, 2])])
def test_a_segment_is_copied_when_all_its_offsets_are_before_the_last_stable_offset(stable_offset, copied):
    assert bases(rolled("- -", "- -"), stable_offset=stable_offset) == copied


def test_no_segment_is_copied_after_one_that_must_wait_so_that_the_manifest_has_no_gap():
    log = rolled("P1", "-")
    assert bases(log) == []
    log.write("P1c")
    assert bases(log) == [0, 1]


def test_only_a_partition_in_commit_order_has_a_view_start():
    assert view_start_of(Log().partition) == 0
    log = CommittedLog()
    log.append(1)
    log.end(1)
    log.sync()
    log.partition.deletion.delete_records(2)
    assert view_start_of(log.partition) == 2


def test_the_files_of_a_segment_have_its_base_offset_and_the_snapshots_its_end_offset():
    paths = {kind: path.name for kind, path in other_files(DIRECTORY, 100, 200).items()}
    base, end = f"{100:020}", f"{200:020}"
    assert paths == {
        IndexKind.OFFSETS: f"{base}.index",
        IndexKind.TIMES: f"{base}.timeindex",
        IndexKind.TRANSACTIONS: f"{base}.txnindex",
        IndexKind.COMMIT_ENTRIES: f"{base}.commitindex",
        IndexKind.COMMIT_EXTENTS: f"{base}.commitextents",
        IndexKind.COMMIT_SUMMARY: f"{base}.commitsummary",
        IndexKind.SNAPSHOT: f"{end}.snapshot",
        IndexKind.PRODUCERS: f"{end}.producers",
    }


def test_leader_epochs_are_copied_up_to_the_end_of_the_segment_and_the_log_keeps_all():
    entries = [(1, 0), (2, 150), (3, 200)]
    assert epochs_up_to(entries, 200).entries == [(1, 0), (2, 150)]
    assert entries == [(1, 0), (2, 150), (3, 200)]


def copied(summary=SUMMARY, epochs=((1, 0),)):
    identity = uuid.UUID(int=7)
    return copied_segment(
        summary, LeaderEpochs([*epochs]), segment_id=identity, broker_id=4, now_ms=NOW_MS + 5
    )


def test_a_copied_segment_has_the_numbers_of_its_summary():
    row = copied()
    assert (row.segment_id, row.broker_id, row.event_ms) == (uuid.UUID(int=7), 4, NOW_MS + 5)
    assert (row.base_offset, row.end_offset, row.size, row.max_timestamp_ms) == (100, 200, 1000, NOW_MS)
    assert (row.summary, row.state) == (SUMMARY, SegmentState.COPY_FINISHED)


@pytest.mark.parametrize(
    ("epochs", "own"),
    [
        ([], ((0, 100),)),
        ([(3, 0)], ((3, 100),)),
        ([(3, 100)], ((3, 100),)),
        ([(1, 0), (3, 90), (5, 150)], ((3, 100), (5, 150))),
    ],
    ids=["unknown", "earlier", "at the base", "changes in the segment"],
)
def test_its_leader_epochs_begin_with_the_one_of_its_first_record(epochs, own):
    assert copied(epochs=epochs).leader_epochs == own


@pytest.mark.parametrize(("size", "is_empty"), [(0, True), (34, False)])
def test_its_summary_tells_whether_a_transaction_was_aborted_in_it(size, is_empty):
    assert copied(replace(SUMMARY, txnindex_size=size)).is_txn_index_empty is is_empty
