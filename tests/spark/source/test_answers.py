"""The table of a log's answers in docs/reference/spark-options.md: each cell is what a read does, without Spark and without a broker."""

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from stablelog.errors import DataLossError
from stablelog.spark.offsets import StreamOffsets
from stablelog.spark.option_table import BATCH, STREAM
from stablelog.spark.options import read_options
from stablelog.spark.schema import Columns
from stablelog.spark.source.ranges import Absence, OffsetState
from stablelog.spark.source.readable_ranges import batch_parts, micro_batch_ranges, parts_of
from stablelog.spark.source.reader import StablelogStreamReader
from stablelog.spark.source.resolve import batch_ranges
from tests import documented

DOCS = documented.page("spark-options.md")
PLACE, IDS = ("x", 0), {"x": "id"}
LOG_START, GAP, HOLE, VISIBLE, LOG_END = 10, (20, 30), (40, 45), 60, 80
# An offset for each answer, and whether a time can stand for it.
OFFSETS = {
    OffsetState.VISIBLE: (VISIBLE - 10, True),
    OffsetState.NOT_YET: (70, True),
    OffsetState.PAST_END: (90, False),
    OffsetState.GAP: (25, False),
    OffsetState.HOLE: (42, False),
}
AFTER = {OffsetState.GAP: GAP[1], OffsetState.HOLE: HOLE[1]}


class EverythingLog:
    """A log with each answer. The record at offset n has the time n seconds."""

    def __init__(self, *, may_lag):
        self.may_lag, self.visible = may_lag, VISIBLE

    def partitions(self, *, there_only=False):
        return {PLACE: "id"}

    def earliest(self, places):
        return dict.fromkeys(places, LOG_START)

    def latest(self, places):
        return dict.fromkeys(places, self.visible)

    def log_ends(self, places):
        return dict.fromkeys(places, LOG_END)

    def at_times(self, times):
        return {place: time // 1000 for place, time in times.items()}

    def absences(self, ranges, topic_ids):
        found = [Absence(*GAP, OffsetState.GAP), Absence(*HOLE, OffsetState.HOLE, "a segment is missing")]
        return dict.fromkeys(ranges, found)


def table():
    """(answer, kind of read, failOnDataLoss, what the cell says)."""
    lines = DOCS.splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("| answer |"))
    heads = [cell.strip() for cell in lines[at].split("|")[2:-1]]
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            return
        says, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        answer = OffsetState(says.partition(":")[0])
        for head, cell in zip(heads, cells, strict=True):
            kind, _, fails = head.partition(", ")
            yield answer, kind, fails.strip("`"), cell


def options(where, fails, offset, *, by_time):
    bound = (
        {"startingTimestamp": str(offset * 1000)}
        if by_time
        else {"startingOffsets": json.dumps({"x": {"0": offset}})}
    )
    return read_options({"bootstrap": "h:1", "subscribe": "x", "failOnDataLoss": fails, **bound}, where)


def batch(log, asked):
    ranges, topic_ids = batch_ranges(asked, log)
    return [part.start for part in batch_parts(asked, log, ranges, topic_ids)]


def stream(log, asked, start=None):
    """Where the parts of the first micro-batch begin, and its start."""
    reader = StablelogStreamReader(asked, Columns(StructType([])))
    reader.source = log
    start = start or reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    before, after = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
    return [part.start for part in parts_of(micro_batch_ranges(asked, log, before, after))], end["x"]["0"]


def check(cell, answer, offset, found, again):
    """Compare what a cell says with where the parts of a read begin, and what is read later."""
    if cell == "reads on":
        assert found[0] == offset
    elif cell == "has no records":
        assert found == []
    elif cell == "waits":
        assert found == []
        assert again() == offset
    elif cell == "goes on after it":
        assert found[0] == AFTER[answer]
    else:
        assert cell == "goes on at the log end"
        assert found == []
        assert again() == LOG_END


@pytest.mark.parametrize(("answer", "kind", "fails", "cell"), list(table()))
def test_a_read_does_what_the_table_says(answer, kind, fails, cell):
    offset, has_time = OFFSETS[answer]
    for by_time in (False, True)[: 1 + has_time]:
        for may_lag in (False, True):
            log = EverythingLog(may_lag=may_lag)
            # Past the end of a store, no offset is lost.
            if may_lag and answer is OffsetState.PAST_END:
                continue
            asked = options(BATCH if kind == "batch" else STREAM, fails, offset, by_time=by_time)
            if cell == "fails":
                with pytest.raises(DataLossError):
                    batch(log, asked) if kind == "batch" else stream(log, asked)
                continue
            if kind == "batch":
                check(cell, answer, offset, batch(log, asked), None)
                continue
            found, reached = stream(log, asked)

            def again(log=log, asked=asked, reached=reached):
                log.visible = LOG_END + 5
                parts, _ = stream(log, asked, {"#topics": IDS, "x": {"0": reached}})
                return parts[0]

            check(cell, answer, offset, found, again)


@pytest.mark.parametrize(("answer", "kind", "fails", "cell"), [one for one in table() if one[1] == "stream"])
def test_a_checkpoint_does_what_the_table_says(answer, kind, fails, cell):
    offset, _ = OFFSETS[answer]
    log, asked = EverythingLog(may_lag=False), options(STREAM, fails, LOG_START, by_time=False)
    start = {"#topics": IDS, "x": {"0": offset}}
    if cell == "fails":
        with pytest.raises(DataLossError):
            stream(log, asked, start)
        return
    found, reached = stream(log, asked, start)

    def again():
        log.visible = LOG_END + 5
        return stream(log, asked, {"#topics": IDS, "x": {"0": reached}})[0][0]

    check(cell, answer, offset, found, again)


def test_the_table_has_every_answer_once():
    found = {answer for answer, *_ in table()}
    assert found == set(OffsetState) - {OffsetState.REMOVED}, "Missing records has the log start"
    assert len(list(table())) == 20
