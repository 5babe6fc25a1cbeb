"""Reads over the offsets that restores left without records, at a broker of which only offsets and epochs are known."""

import pytest

from stablelog.errors import DataLossError, OffsetOutOfRangeError
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.files.restored import Restored
from stablelog.spark.option_table import STREAM
from stablelog.spark.options import read_options
from stablelog.spark.source.lost_offsets import LostRange, lost_range, readable
from stablelog.spark.source.resolve import Range
from stablelog.tier.restoring import GAP, LEADER_EPOCH_STEP

PLACE = ("t", 0)


class Broker:
    """A broker that was restored at each of these offsets, which are counted without the lost ones.

    Args:
        restored: how many records the log has at each restore.
        count: how many records the log has now.
        used: the number of lost offsets that had records.
    """

    def __init__(self, *restored, count, used=0):
        self.epochs = LeaderEpochs()
        self.epochs.assign(0, 0)
        self.ranges, moved, self.requests = [], 0, 0
        for start in restored:
            self.ranges.append(LostRange(start + moved, start + moved + used + GAP))
            moved += used + GAP
            epoch = self.epochs.latest + LEADER_EPOCH_STEP
            self.epochs.assign(epoch, self.ranges[-1].start)
            if start < count:
                self.epochs.assign(epoch + 1, self.ranges[-1].end)
        self.end = count + moved

    def fetch(self, _topic, _partition, offset, _size, _isolation, *, wait_ms):
        assert wait_ms == 0
        self.requests += 1
        assert 0 <= offset <= self.end
        if Restored(tuple(self.ranges), 0, 0, 0, 0).lost_range(offset) is not None:
            raise OffsetOutOfRangeError("lost")

    def epoch_end(self, _topic, _partition, epoch):
        self.requests += 1
        end = self.epochs.end_offset(epoch, self.end)[1]
        return end if end >= 0 else None

    def ranges_of(self, start, end, **options):
        given = read_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t", **options}, STREAM)
        return [(one.start, one.end) for one in readable(given, self, Range(PLACE, start, end))]


@pytest.mark.parametrize("restored", [(5,), (5, 8), (5, 6, 7), (0, 3)])
@pytest.mark.parametrize("used", [0, 3, 400_000_000])
def test_a_read_over_lost_offsets_has_all_records(restored, used):
    """Also the few records between two restores."""
    broker = Broker(*restored, count=11, used=used)
    borders = [0, *(border for one in broker.ranges for border in one), broker.end]
    wanted = [(low, high) for low, high in zip(borders[::2], borders[1::2], strict=True) if low < high]
    assert broker.ranges_of(0, broker.end) == wanted
    assert sum(high - low for low, high in wanted) == 11


@pytest.mark.parametrize("restored", [(5,), (5, 6), (5, 11)])
@pytest.mark.parametrize("offset", [1, 2, 400_000_000])
def test_a_reader_at_a_lost_offset_gets_an_error_or_the_first_new_record(restored, offset):
    broker = Broker(*restored, count=11, used=3)
    gone = broker.ranges[0]
    start = gone.start + offset
    with pytest.raises(DataLossError, match=rf"t-0 .* {start}: .* {gone.start} on .* {gone.end}\. Set fail"):
        broker.ranges_of(start, broker.end)
    found = broker.ranges_of(start, broker.end, failOnDataLoss="false")
    assert found[0][0] == gone.end
    assert sum(high - low for low, high in found) == 6


def test_a_lost_offset_is_found_before_the_first_new_record():
    broker = Broker(5, count=5)
    for offset in (6, GAP, broker.end - 1):
        assert lost_range(broker, PLACE, offset) == broker.ranges[0]
    assert lost_range(broker, PLACE, broker.end) is None


def test_a_short_range_needs_no_request():
    broker = Broker(count=10)
    assert broker.ranges_of(2, 10) == [(2, 10)]
    assert broker.requests == 0
