"""The first damage of a log: what a truncation there loses."""

from pathlib import Path

from stablelog.batch.header import read_header
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.batch.records import Record, encode_batch
from stablelog.log.recovery.damage import Damage
from tests.log.timeline import NOW_MS

LOG = Path("/t-0") / f"{10:020d}.log"


def header_of(batch, base_offset):
    return read_header(batch, 0)._replace(base_offset=base_offset)


def test_the_batches_that_are_lost_are_counted_as_records_and_markers():
    damage = Damage(LOG, 100, 12, "its CRC is wrong")
    damage.count_batch(header_of(encode_batch([Record(n, 0, None, b"v") for n in range(3)]), 20))
    commit = Marker(MarkerType.COMMIT, 0)
    marker = encode_marker(
        commit, base_offset=0, leader_epoch=0, producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS
    )
    damage.count_batch(header_of(marker, 15))
    assert (damage.batch_count, damage.record_count, damage.marker_count) == (2, 3, 1)
    assert damage.last_offset == 22, "the greatest offset, in whatever order the batches are counted"


def test_batches_are_lost_from_the_damaged_file_and_from_all_later_ones():
    damage = Damage(LOG, 100, 12, "its CRC is wrong", later=(30, 50))
    assert list(damage.lost_files()) == [
        (LOG, 100, 12),
        (LOG.with_name(f"{30:020d}.log"), -1, 30),
        (LOG.with_name(f"{50:020d}.log"), -1, 50),
    ]
