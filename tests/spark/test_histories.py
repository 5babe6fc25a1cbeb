"""What is read is what confluent-kafka reads with the same isolation, by both scans, from every range."""

import json
import shutil

import pytest

from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.errors import UnavailableError
from stablelog.spark.option_table import STREAM
from stablelog.spark.options import read_options
from stablelog.spark.planning import TaskLimits
from stablelog.spark.record_count import count
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.source.counting import files_count
from stablelog.spark.source.ranges import Range, whole
from stablelog.spark.source.reader import open_log
from tests.clients.drivers import unique
from tests.spark.histories import Writers, truth
from tests.spark.reading import make, rows, settled, tasks

pytestmark = pytest.mark.xdist_group("histories")  # one worker makes the histories

PARTITIONS = 2
COLUMNS = ("partition", "offset", "value")
ISOLATIONS = ("read_committed", "read_uncommitted")


@pytest.fixture(scope="module", params=[1, 2])
def history(request, stablelog_broker):
    """A topic of small segments, with a transaction open at its end."""
    bootstrap, topic = stablelog_broker.bootstrap, unique("history")
    make(bootstrap, topic, PARTITIONS, **{"segment.bytes": "1024", "index.interval.bytes": "200"})
    writers = Writers(bootstrap, topic, PARTITIONS, request.param)
    for _ in range(100):
        writers.step()
    writers.end_all()
    settled(bootstrap, topic)
    left_open = writers.transactional[0]
    left_open.begin_transaction()
    writers.write(left_open)
    writers.write(writers.plain)
    writers.seen = {isolation: truth(bootstrap, topic, PARTITIONS, isolation) for isolation in ISOLATIONS}
    yield topic, writers
    left_open.abort_transaction(30)


def given(broker, topic, **more):
    return {"bootstrap": broker.bootstrap, "subscribe": topic, **more}


def limits_of(broker, topic, isolation):
    with BlockingCluster(broker.bootstrap) as cluster:
        places = [(topic, index) for index in range(PARTITIONS)]
        starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
        ends = cluster.list_offsets(dict.fromkeys(places, LATEST), isolation)
    return [(starts[place].offset, ends[place].offset) for place in places]


def ways(broker, topic, copied):
    """By each scan of a running broker, and from a copy of its directory."""
    for index in range(PARTITIONS):
        shutil.copytree(broker.data / f"{topic}-{index}", copied / f"{topic}-{index}")
    yield given(broker, topic, scan="fetch")
    yield given(broker, topic, scan="files")
    yield {"path": str(copied)}


@pytest.mark.extended
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_everything_by_every_way(stablelog_broker, history, isolation, tmp_path):
    topic, writers = history
    wanted = writers.seen[isolation]
    for way in ways(stablelog_broker, topic, tmp_path):
        found = rows({**way, "isolation": isolation}, *COLUMNS)
        assert sorted(found) == wanted
        for index in range(PARTITIONS):
            assert [row for row in found if row[0] == index] == [row for row in wanted if row[0] == index]


@pytest.mark.extended
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_every_range_by_both_scans(stablelog_broker, history, isolation):
    topic, writers = history
    wanted = writers.seen[isolation]
    bounds = limits_of(stablelog_broker, topic, isolation)
    for number in range(40):
        places = [
            sorted((writers.random.randint(first, end), writers.random.randint(first, end)))
            for first, end in bounds
        ]
        if number < 20:
            places = [(first + number * (end - first) // 20, end) for first, end in bounds]
        expected = [row for row in wanted if places[row[0]][0] <= row[1] < places[row[0]][1]]
        asked = {
            "isolation": isolation,
            "startingOffsets": json.dumps({topic: {str(n): start for n, (start, _) in enumerate(places)}}),
            "endingOffsets": json.dumps({topic: {str(n): end for n, (_, end) in enumerate(places)}}),
        }
        for scan in ("fetch", "files") if number % 4 == 0 else ("files",):
            assert sorted(rows(given(stablelog_broker, topic, scan=scan, **asked), *COLUMNS)) == expected, (
                scan,
                places,
            )


@pytest.mark.extended
@pytest.mark.parametrize("scan", ["fetch", "files"])
@pytest.mark.parametrize("target_size", [1, 300, 2000])
def test_tasks_that_are_cut_anywhere_read_the_same(stablelog_broker, history, scan, target_size):
    topic, writers = history
    planned = tasks(given(stablelog_broker, topic, scan=scan), TaskLimits(target_size=target_size))
    if scan == "files":
        assert all(piece.extents for pieces in planned for piece in pieces)
    found = rows(given(stablelog_broker, topic), *COLUMNS, planned=planned)
    assert sorted(found) == writers.seen["read_committed"]


@pytest.mark.parametrize("scan", ["fetch", "files"])
@pytest.mark.parametrize(
    "limits", [TaskLimits(offsets_max=1), TaskLimits(offsets_max=3), TaskLimits(count_min=40)]
)
def test_batches_that_are_cut_inside_are_read_once(stablelog_broker, history, scan, limits):
    topic, writers = history
    planned = tasks(given(stablelog_broker, topic, scan=scan), limits)
    found = rows(given(stablelog_broker, topic), *COLUMNS, planned=planned)
    assert sorted(found) == writers.seen["read_committed"]


@pytest.mark.parametrize(
    "lost",
    [
        (".index", ".timeindex"),
        (".summary",),
        (".snapshot", ".producers"),
        (".snapshot", ".producers", ".summary", ".index"),
        ("growing .txnindex", ".snapshot", ".producers"),
        ("growing .txnindex",),
    ],
)
def test_a_directory_without_what_only_helps(stablelog_broker, history, tmp_path, lost):
    topic, writers = history
    for index in range(PARTITIONS):
        copy = tmp_path / f"{topic}-{index}"
        shutil.copytree(stablelog_broker.data / copy.name, copy)
        growing = max(copy.glob("*.log"))
        for path in copy.iterdir():
            if path.suffix in lost or (f"growing {path.suffix}" in lost and path.stem == growing.stem):
                path.unlink()
    before = sorted(tmp_path.rglob("*"))
    found = rows({"path": str(tmp_path)}, *COLUMNS)
    assert sorted(found) == writers.seen["read_committed"]
    assert sorted(tmp_path.rglob("*")) == before


def test_the_files_are_taken_where_they_are_seen(stablelog_broker, history):
    planned = tasks(given(stablelog_broker, history[0]))
    assert all(piece.extents for pieces in planned for piece in pieces)


@pytest.mark.parametrize("line", ["node.id=7", "broker.id=7"])
def test_a_directory_of_another_broker_is_not_taken_for_the_leaders(
    stablelog_broker, history, line, tmp_path
):
    for index in range(PARTITIONS):  # at rest, which the rest of a running broker's directory is not
        of_partition = f"{history[0]}-{index}"
        shutil.copytree(stablelog_broker.data / of_partition, tmp_path / "data" / of_partition)
    shutil.copy(stablelog_broker.data / "meta.properties", tmp_path / "data")
    asked = given(stablelog_broker, history[0], mount=str(tmp_path / "data"))
    assert all(piece.extents for pieces in tasks(asked) for piece in pieces)
    (tmp_path / "data" / "meta.properties").write_text(f"#\nversion=1\n{line}\n")
    with pytest.raises(UnavailableError, match="or cannot be read"):
        tasks(asked)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_counts_are_exact_and_read_nothing(stablelog_broker, history, isolation, tmp_path):
    topic, writers = history
    wanted = writers.seen[isolation]
    for way in ways(stablelog_broker, topic, tmp_path):
        assert count({**way, "isolation": isolation}) == len(wanted)
    bounds = limits_of(stablelog_broker, topic, isolation)
    for index, (first, end) in enumerate(bounds):
        files = PartitionFiles(stablelog_broker.data / f"{topic}-{index}", topic, index)
        assert len(files.segments) > 4
        for _ in range(150):
            low, high = sorted((writers.random.randint(first, end), writers.random.randint(first, end)))
            found = files_count(files, low, high, committed=isolation == "read_committed")
            assert found == sum(1 for row in wanted if row[0] == index and low <= row[1] < high), (low, high)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_limit_is_of_real_records(stablelog_broker, history, isolation):
    topic, writers = history
    wanted = writers.seen[isolation]
    log = open_log(read_options(given(stablelog_broker, topic, isolation=isolation), STREAM))
    bounds = limits_of(stablelog_broker, topic, isolation)
    places = [(topic, index) for index in range(PARTITIONS)]
    starts = {place: start for place, (start, _) in zip(places, bounds, strict=True)}
    sizes, read = [], []
    while any(starts[place] < end for place, (_, end) in zip(places, bounds, strict=True)):
        ranges = [Range(place, starts[place], end) for place, (_, end) in zip(places, bounds, strict=True)]
        ranges = [whole(one) for one in ranges if one.start < one.end]
        ends = log.limit_ranges(ranges, {}, 10, None)
        batch = [
            row
            for row in wanted
            for place, end in ends.items()
            if row[0] == place[1] and starts[place] <= row[1] < end
        ]
        assert ends != starts
        sizes.append(len(batch))
        read += batch
        starts |= ends
    log.close()
    assert sorted(read) == wanted
    assert max(sizes) <= 10
    assert sum(size == 10 for size in sizes) > len(sizes) // 2
