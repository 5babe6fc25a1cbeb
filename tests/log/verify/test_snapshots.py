"""Verification of snapshots: what a snapshot says of a producer is held against the log."""

from dataclasses import replace

from stablelog.log.producer_state.producer import KeptBatch, ProducerEntry
from stablelog.log.verify.snapshots import agrees_with_log
from tests.log.timeline import NOW_MS
from tests.log.verify.test_directory import content_of, findings, path_of, several_epochs


def test_a_snapshot_agrees_with_the_log_if_it_says_the_same_or_less():
    batches = [KeptBatch(one, 10 * one, 0, NOW_MS + one) for one in range(1, 4)]
    known = ProducerEntry(1, 2, 3, batches, txn_first_offset=20)
    for said, count, agrees in (
        (known, 5, True),
        (replace(known, batches=batches[1:]), 5, True),
        (replace(known, batches=batches[:1]), 5, False),
        (replace(known, batches=[]), 5, True),
        (replace(known, batches=[batches[2]._replace(timestamp_ms=7)]), 1, True),
        (replace(known, batches=[batches[2]._replace(timestamp_ms=7)]), 5, False),
        (replace(known, batches=[batches[2]._replace(last_offset=7)]), 1, False),
        (replace(known, coordinator_epoch=-1), 5, True),
        (replace(known, coordinator_epoch=0), 5, False),
        (replace(known, coordinator_epoch=4), 5, False),
        (replace(known, producer_epoch=3), 5, False),
        (replace(known, producer_epoch=3, batches=[]), 5, False),
        (replace(known, txn_first_offset=-1), 5, False),
        (replace(known, batches=[KeptBatch(0, 0, 0, 1), *batches]), 5, False),
        (replace(known, batches=[KeptBatch(0, 0, 0, 1), *batches[1:]]), 5, False),
    ):
        assert agrees_with_log(said, known, count) is agrees, said
    markerless = replace(known, coordinator_epoch=-1)
    assert not agrees_with_log(replace(markerless, batches=[KeptBatch(0, 0, 0, 1), *batches]), markerless, 5)


def test_a_snapshot_past_the_end_of_the_log_is_named():
    log = several_epochs(1)
    for suffix in (".producers", ".snapshot"):
        log.disk.write_atomic(
            path_of(log.end_offset + 1, suffix), content_of(log, path_of(log.bases[-1], suffix))
        )
    assert {finding.path for finding in findings(log)} == {path_of(log.end_offset + 1, ".snapshot")}
