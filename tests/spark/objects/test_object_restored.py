"""Reads of the store of a broker that was restored: what is gone is left out or named, and no plan divides the gap."""

import json

import pytest

from stablelog.errors import DataLossError
from stablelog.spark import count
from stablelog.spark.option_table import STREAM
from stablelog.spark.options import read_options
from stablelog.spark.planning import TaskLimits
from stablelog.spark.source.object_log import ObjectLog
from stablelog.spark.source.ranges import Range
from stablelog.spark.source.readable_ranges import readable_ranges
from tests.broker.tiering.life import TOPIC, URL, alive, lived
from tests.broker.tiering.test_restored_broker import stablelog
from tests.spark.reading import rows, settled, tasks
from tests.waiting import until


@pytest.fixture(scope="module")
def restored(module_path):
    """The options of a read, what is committed and not lost, and the lost offsets."""
    with pytest.MonkeyPatch.context() as patch, lived(module_path, patch) as life:
        life.create()
        life.write()
        life.wait_until_remote()
        life.writer.write(2)
        until(life.is_commit_log_copied, lambda: "the commit log is not copied")
        settled(life.broker.bootstrap, TOPIC)
        life.broker.kill()
        report = json.loads(
            stablelog("restore", URL, "--data", module_path / "new", "--allow-http", "--json")
        )
        (lost,) = [one for one in report["ranges"] if one["topic"] == TOPIC]
        kept = [row for row in life.writer.committed if row[0] < lost["lost_from"]]
        with alive(module_path / "new", life.s3, port=life.broker.port) as again:
            again.go_on(life.writer)
            again.writer.committed = kept
            again.write()
            again.wait_until_remote()
            options = {f"store.{name}": value for name, value in life.s3.options.items()}
            yield {"path": URL, "subscribe": TOPIC, "store.allow_http": "true", **options}, again, lost


@pytest.mark.extended
@pytest.mark.parametrize("limits", [TaskLimits(), TaskLimits(offsets_max=1000), TaskLimits(count_min=8)])
def test_a_read_has_what_the_restore_found_and_what_was_written_since(restored, limits):
    given, life, _ = restored
    planned = tasks(given, limits)
    assert len(planned) < 50, "the lost offsets are no work"
    end = max(piece.end for pieces in planned for piece in pieces)
    assert rows(given, "offset", "value", planned=planned) == [
        row for row in life.writer.committed if row[0] < end
    ]
    assert count(given) == len(rows(given, "offset", planned=planned))


@pytest.mark.extended
@pytest.mark.parametrize("with_broker", [False, True])
def test_a_start_at_a_lost_offset_is_refused(restored, with_broker):
    given, life, lost = restored
    given = {**given, **({"kafka.bootstrap.servers": life.broker.bootstrap} if with_broker else {})}
    inside = {**given, "startingOffsets": json.dumps({TOPIC: {"0": lost["lost_from"] + 3}})}
    with pytest.raises(DataLossError, match=f"records from offset {lost['lost_from']} on are gone"):
        rows(inside, "offset")
    found = rows({**inside, "failOnDataLoss": "false"}, "offset")
    assert len(found) > 0
    assert found[0] == (min(offset for offset, _ in life.writer.committed if offset > lost["lost_from"]),)


@pytest.mark.extended
@pytest.mark.parametrize("limit", [(7, None), (None, 3_000)])
def test_no_micro_batch_ends_among_lost_offsets(restored, limit):
    given, _, lost = restored
    log = ObjectLog(read_options(given, STREAM))
    place = TOPIC, 0
    log.partitions()
    start, end, ends = 0, log.latest([place])[place], []
    while start < end:
        start = log.limit_ranges(readable_ranges(log, [Range(place, start, end)], {}), {}, *limit)[place]
        ends.append(start)
    assert ends[-1] == end
    assert len(ends) > 3
    assert not [one for one in ends if lost["lost_from"] < one < lost["next_offset"]]
