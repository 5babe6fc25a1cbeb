"""Reads over the offsets that restores left without records, at a broker of which only offsets and epochs are known."""

import pytest

from stablelog.errors import DataLossError, OffsetOutOfRangeError
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.files.restored import Restored
from stablelog.spark.option_table import STREAM
from stablelog.spark.options import read_options
from stablelog.spark.source.lost_offsets import LostOffsets, is_lost, lost_range, lost_ranges
from stablelog.spark.source.ranges import Range, gaps_for, readable_parts
from stablelog.spark.source.readable_ranges import parts_of, report_losses
from stablelog.tier.restored_files import LEADER_EPOCH_STEP

PLACE = ("t", 0)


class Broker:
    """A broker that was restored at each of these offsets, which are counted without the lost ones.

    Args:
        restored: how many records the log has at each restore.
        count: how many records the log has now.
        gap: the number of lost offsets of a restore.
        started: how often the broker starts before each restore, with a record after each start.
        idle: how often it starts without a record after the last restore.
    """

    def __init__(self, *restored, count, gap=1_000_000, started=0, idle=0):
        self.epochs, self.requests = LeaderEpochs(), 0
        self.ranges, moved, epoch, at = [], 0, 0, 0
        self.epochs.assign_epoch(0, 0)
        for start in restored:
            if self.ranges and at == start:  # no record was copied since the last restore
                self.epochs.truncate_to(self.ranges[-1].start)
            for place in range(at + 1, start):
                if started:
                    epoch += started
                    self.epochs.assign_epoch(epoch, place + moved)
            at = start
            self.ranges.append(LostOffsets(start + moved, start + moved + gap))
            moved += gap
            epoch += LEADER_EPOCH_STEP
            joined = Restored(tuple(self.ranges), 0, 0, 0, 0).gaps
            self.epochs.assign_epoch(epoch, joined[-1][0])
            epoch += 1
            if start < count:
                self.epochs.assign_epoch(epoch, self.ranges[-1].end)
        self.end, self.epoch = count + moved, epoch + idle

    def fetch(self, _topic, _partition, offset, _size, _isolation, *, wait_ms):
        assert wait_ms == 0
        self.requests += 1
        assert 0 <= offset <= self.end
        if Restored(tuple(self.ranges), 0, 0, 0, 0).lost_range(offset) is not None:
            raise OffsetOutOfRangeError("lost")

    def epoch_end(self, _topic, _partition, epoch):
        self.requests += 1
        found, end = self.epochs.end_offset(epoch, self.end)
        return (found, end) if end >= 0 else None

    def gaps(self, log_start=0):
        return lost_ranges(self, PLACE, self.epoch, log_start)

    def ranges_of(self, start, end, log_start=0, **options):
        given = read_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t", **options}, STREAM)
        wanted = Range(PLACE, start, end)
        gaps = gaps_for(wanted, self.gaps(log_start), lambda offset: is_lost(self, PLACE, offset))
        found = [readable_parts(wanted, log_start, gaps)]
        report_losses(given, found)
        return [(one.start, one.end) for one in parts_of(found)]


@pytest.mark.parametrize("restored", [(5,), (5, 8), (5, 6, 7), (0, 3), (11,), (5, 11)])
@pytest.mark.parametrize("gap", [2, 3, 1_000, 1_000_000_000])
@pytest.mark.parametrize(("started", "idle"), [(0, 0), (1, 999), (400, 5_000), (2_000, 0)])
def test_a_read_over_lost_offsets_has_all_records(restored, gap, started, idle):
    """Also the few records between two restores, however many offsets are lost, and however often the broker started."""
    broker = Broker(*restored, count=11, gap=gap, started=started, idle=idle)
    assert list(broker.gaps()) == broker.ranges
    borders = [0, *(border for one in broker.ranges for border in one), broker.end]
    wanted = [(low, high) for low, high in zip(borders[::2], borders[1::2], strict=True) if low < high]
    assert broker.ranges_of(0, broker.end) == wanted
    assert sum(high - low for low, high in wanted) == 11


@pytest.mark.parametrize("restored", [(5,), (5, 6), (5, 11)])
@pytest.mark.parametrize("offset", [1, 2, 400_000])
def test_a_reader_at_a_lost_offset_gets_an_error_or_the_first_new_record(restored, offset):
    broker = Broker(*restored, count=11)
    gone = broker.ranges[0]
    start = gone.start + offset
    with pytest.raises(DataLossError, match=rf"t-0 .* {start}: .* {gone.start} on .* {gone.end}\. Set fail"):
        broker.ranges_of(start, broker.end)
    found = broker.ranges_of(start, broker.end, failOnDataLoss="false")
    assert found[0][0] == gone.end
    assert sum(high - low for low, high in found) == 6


def test_a_reader_at_the_restored_end_misses_nothing():
    broker = Broker(5, count=11)
    assert broker.ranges_of(5, broker.end) == [(broker.ranges[0].end, broker.end)]


@pytest.mark.parametrize("gap", [2, 3, 1_000])
def test_a_reader_between_two_restores_without_a_record_between_them_misses_nothing(gap):
    broker = Broker(5, 5, count=11, gap=gap)
    border, end = broker.ranges[1]
    assert broker.gaps() == ((5, end),)
    assert broker.ranges_of(0, broker.end) == [(0, 5), (end, broker.end)]
    assert broker.ranges_of(border, broker.end) == [(end, broker.end)]
    with pytest.raises(DataLossError, match="from offset 5 on are gone"):
        broker.ranges_of(border + 1, broker.end)


@pytest.mark.parametrize("bears", ["true", "false"])
def test_a_range_of_lost_offsets_alone_has_nothing_to_read(bears):
    broker = Broker(5, count=5)
    assert broker.ranges_of(5, broker.end, failOnDataLoss=bears) == []
    if bears == "false":
        assert broker.ranges_of(7, broker.end, failOnDataLoss=bears) == []


def test_a_log_that_begins_among_lost_offsets_begins_with_the_first_new_record():
    broker = Broker(5, count=8)
    start, end = broker.ranges[0]
    assert broker.ranges_of(start + 3, broker.end, log_start=start + 3) == [(end, broker.end)]
    assert broker.gaps(log_start=end) == ()


def test_a_lost_offset_is_found_before_the_first_new_record():
    broker = Broker(5, count=5)
    for offset in (6, 1_000, broker.end - 1):
        assert lost_range(broker, PLACE, offset) == broker.ranges[0]
    assert lost_range(broker, PLACE, broker.end) is None


def test_a_log_that_was_never_restored_needs_no_request():
    broker = Broker(count=10)
    assert broker.gaps() == ()
    assert broker.requests == 0


def test_starts_of_the_broker_take_no_request():
    broker = Broker(2_000, count=2_001, started=1)
    assert list(broker.gaps()) == broker.ranges
    assert broker.requests < 50
