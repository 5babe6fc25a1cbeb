"""From where to where is read, and what is called lost."""

from dataclasses import replace

import pytest

from stablelog.errors import DataLossError, UnavailableError, UsageError
from stablelog.spark.offsets import StreamOffsets
from stablelog.spark.option_table import BATCH, STREAM
from stablelog.spark.options import read_options
from stablelog.spark.source.ranges import Range
from stablelog.spark.source.readable_ranges import micro_batch_ranges, parts_of
from stablelog.spark.source.resolve import Waiting, batch_ranges, check_partitions, stream_end

GIVEN = {"bootstrap": "h:1", "subscribe": "x"}
A, B = ("x", 0), ("x", 1)


class LogOnPaper:
    """Two partitions: 0 holds the offsets 10 to 19, 1 the offsets 0 to 4; one record each second.

    Args:
        held: how many records of each partition are behind its visible end.
        may_lag: whether this is a store.
    """

    def __init__(self, held=0, *, may_lag=False):
        self.starts, self.ends = {A: 10, B: 0}, {A: 20, B: 5}
        self.held, self.may_lag = held, may_lag

    def partitions(self, *, there_only=False):
        return dict.fromkeys(self.ends, "id")

    def earliest(self, places):
        return {place: self.starts[place] for place in places}

    def latest(self, places):
        return {place: self.ends[place] for place in places}

    def log_ends(self, places):
        return {place: self.ends[place] + self.held for place in places}

    def absences(self, ranges, topic_ids):
        return {}

    def at_times(self, times):
        found = {place: max(self.starts[place], -(-time // 1000)) for place, time in times.items()}
        ends = self.log_ends(times)
        return {place: offset if offset < ends[place] else None for place, offset in found.items()}


def ranges(log=None, **given):
    return batch_ranges(read_options({**GIVEN, **given}, BATCH), log or LogOnPaper())[0]


def test_everything_is_read_by_default():
    assert ranges() == [Range(A, 10, 20), Range(B, 0, 5)]


def test_offsets_with_earliest_and_latest_among_them():
    found = ranges(startingOffsets='{"x": {"0": 12, "1": -2}}', endingOffsets='{"x": {"0": -1, "1": 3}}')
    assert found == [Range(A, 12, 20), Range(B, 0, 3)]


def test_times():
    assert ranges(startingTimestamp="2500", endingTimestamp="12000") == [Range(A, 10, 12), Range(B, 3, 5)]
    by_partition = '{"x": {"0": 15000, "1": 1000}}'
    assert ranges(startingOffsetsByTimestamp=by_partition) == [Range(A, 15, 20), Range(B, 1, 5)]


def test_a_time_after_the_last_record():
    with pytest.raises(UnavailableError, match="x-1 has no record of time 9000"):
        ranges(startingTimestamp="9000")
    found = ranges(startingTimestamp="9000", startingOffsetsByTimestampStrategy="latest")
    assert found == [Range(A, 10, 20)]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ('{"x": {"0": 9, "1": 0}}', "x-0 begins at offset 10, but startingOffsets is 9"),
        ('{"x": {"0": 10, "1": 6}}', "x-1 ends at offset 5, but startingOffsets is 6"),
    ],
)
def test_offsets_that_are_gone_or_never_were(offsets, message, caplog):
    with pytest.raises(DataLossError, match=message):
        ranges(startingOffsets=offsets)
    assert ranges(startingOffsets=offsets, failOnDataLoss="false")
    assert message in caplog.text


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ('{"x": {"0": 10}}', "startingOffsets does not name x-1"),
        ('{"x": {"0": 10, "1": 0, "2": 0}}', "startingOffsets names x-2, which the read does not include"),
        ('{"y": {"0": 10}}', "startingOffsets names y-0"),
    ],
)
def test_offsets_name_the_partitions_that_are_read(offsets, message):
    with pytest.raises(UsageError, match=message):
        ranges(startingOffsets=offsets)


@pytest.mark.parametrize("option", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
def test_an_error_of_times_names_their_option(option):
    with pytest.raises(
        UsageError, match=f"{option} does not name x-1: name every partition, each with a time"
    ):
        ranges(**{option: '{"x": {"0": 10}}'})
    with pytest.raises(UsageError, match=f"{option} names y-0"):
        ranges(**{option: '{"y": {"0": 10}}'})


HELD = "an open transaction holds read-committed readers at offset"
STORED = "the store has records up to offset"


@pytest.mark.parametrize(("may_lag", "reason"), [(False, HELD), (True, STORED)])
def test_a_batch_ends_at_the_visible_end(may_lag, reason, caplog):
    log = LogOnPaper(held=15, may_lag=may_lag)
    behind = '{"x": {"0": 30, "1": 20}}'
    assert ranges(log, endingOffsets=behind) == [Range(A, 10, 20), Range(B, 0, 5)]
    assert f"partition x-0: {reason} 20" in caplog.text
    caplog.clear()
    assert ranges(log, startingOffsets='{"x": {"0": 30, "1": 4}}') == [Range(B, 4, 5)]
    assert ranges(log, startingOffsets=behind, endingOffsets=behind) == []
    assert f"partition x-0: {reason} 20" in caplog.text
    assert ranges(log, startingTimestamp="12000") == [Range(A, 12, 20)]
    assert ranges(log, endingTimestamp="12000") == [Range(A, 10, 12), Range(B, 0, 5)]


def test_only_a_store_may_have_records_past_its_end_later():
    past = '{"x": {"0": 36, "1": 0}}'
    with pytest.raises(DataLossError, match="x-0 ends at offset 35, but startingOffsets is 36"):
        ranges(LogOnPaper(held=15), startingOffsets=past)
    assert ranges(LogOnPaper(held=15, may_lag=True), startingOffsets=past) == [Range(B, 0, 5)]


def test_an_end_before_the_start_is_refused():
    with pytest.raises(UsageError, match="x-0: startingOffsets=15 is after endingOffsets=12"):
        ranges(startingOffsets='{"x": {"0": 15, "1": 0}}', endingOffsets='{"x": {"0": 12, "1": 5}}')


STREAMED = read_options(GIVEN, STREAM)
LENIENT = replace(STREAMED, fail_on_data_loss=False)


def planned(start, end, options=STREAMED):
    return parts_of(micro_batch_ranges(options, LogOnPaper(), start, end))


def test_a_micro_batch_is_what_lies_between_two_offsets():
    start, end = StreamOffsets({A: 12, B: 5}), StreamOffsets({A: 20, B: 5})
    assert planned(start, end) == [Range(A, 12, 20)]


def test_a_partition_that_came_later_is_read_from_its_beginning():
    assert planned(StreamOffsets({A: 20}), StreamOffsets({A: 20, B: 3})) == [Range(B, 0, 3)]


def test_what_retention_took_before_it_was_read_is_lost():
    start, end = StreamOffsets({A: 8, B: 5}), StreamOffsets({A: 20, B: 5})
    with pytest.raises(DataLossError, match="x-0 begins at offset 10 now: offsets 8 to 9 were removed"):
        planned(start, end)
    assert planned(start, end, LENIENT) == [Range(A, 10, 20)]


def test_what_is_read_past_is_not_lost():
    assert planned(StreamOffsets({A: 4, B: 5}), StreamOffsets({A: 4, B: 5})) == []


def end_of(start, latest, options=STREAMED, log=None, waiting=None):
    known = log or LogOnPaper()
    known.ends = latest
    return stream_end(options, known, start, dict.fromkeys(latest, "id"), latest, waiting or Waiting())


@pytest.mark.parametrize(("may_lag", "reason"), [(False, HELD), (True, STORED)])
def test_a_stream_waits_behind_the_visible_end_and_says_so_once(may_lag, reason, caplog):
    log, waiting = LogOnPaper(held=15, may_lag=may_lag), Waiting()
    for _ in range(3):
        found = end_of(StreamOffsets({A: 35, B: 3}), {A: 20, B: 5}, log=log, waiting=waiting)
        assert found.next_offsets == {A: 35, B: 5}
    assert [one.getMessage() for one in caplog.records] == [
        f"partition x-0: {reason} 20{' only' * may_lag}, so the stream waits at its offset 35"
    ]
    assert end_of(StreamOffsets({A: 35}), {A: 35}, log=log, waiting=waiting).next_offsets == {A: 35}


def test_a_stream_past_the_log_end_goes_back_to_it_if_it_bears_losses(caplog):
    log = LogOnPaper(held=3)
    with pytest.raises(DataLossError, match="x-0 ends at offset 23, but was read up to 24 before"):
        end_of(StreamOffsets({A: 24}), {A: 20}, log=log)
    moved = end_of(StreamOffsets({A: 24}), {A: 20}, LENIENT, log=log)
    assert moved.next_offsets == {A: 23}
    caplog.clear()
    assert end_of(moved, {A: 20}, LENIENT, log=log) == moved
    assert "ends at offset" not in caplog.text, "the loss is reported once"


def test_a_stream_goes_on_to_the_ends():
    assert end_of(StreamOffsets({A: 12}), {A: 20, B: 5}) == StreamOffsets({A: 20, B: 5}, {"x": "id"})


@pytest.mark.parametrize(
    ("start", "latest", "message"),
    [
        (StreamOffsets({A: 12, B: 3}), {A: 20}, "x-1 does not exist any more, but was read before"),
        (StreamOffsets({A: 21}), {A: 20}, "x-0 ends at offset 20, but was read up to 21 before"),
        (StreamOffsets({A: 12}, {"x": "other"}), {A: 20}, "x was deleted and created again"),
    ],
)
def test_a_stream_is_told_what_is_lost(start, latest, message):
    with pytest.raises(DataLossError, match=message):
        end_of(start, latest)
    assert end_of(start, latest, LENIENT).topic_ids == {"x": "id"}


@pytest.mark.parametrize(
    "given",
    [
        {"subscribe": "x"},
        {"subscribe": None, "subscribePattern": "x|yy"},
        {"subscribe": None, "assign": '{"x": [0, 1]}'},
        {"subscribe": "x,y", "partitions": "0,1"},
    ],
)
def test_a_partition_that_the_options_leave_out_is_not_called_deleted(given):
    asked = {name: value for name, value in {**GIVEN, **given}.items() if value is not None}
    start = StreamOffsets({A: 20, B: 5, ("y", 2): 7})
    with pytest.raises(
        DataLossError, match="y-2 was read before, but the options of the query leave it out now"
    ):
        end_of(start, {A: 20, B: 5}, read_options(asked, STREAM))


def test_a_number_that_no_topic_has_is_refused():
    options = read_options({**GIVEN, "partitions": "1,5"}, BATCH)
    check_partitions(options, {0, 1, 5})
    check_partitions(options, ())  # there is no topic yet
    with pytest.raises(
        UsageError, match="partitions names 5, but the topics of the read have the partitions 0 to 1"
    ):
        check_partitions(options, {0, 1})


def test_a_topic_that_was_created_again_is_read_from_its_beginning():
    start, end = StreamOffsets({B: 4}, {"x": "old"}), StreamOffsets({B: 5}, {"x": "new"})
    assert planned(start, end) == [Range(B, 0, 5)]
    assert end_of(start, {B: 2}, LENIENT) == StreamOffsets({B: 2}, {"x": "id"})
