"""Apache Kafka itself, running: by fetch, and by its files, which it names itself."""

import pytest

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.errors import UsageError
from stablelog.spark import count
from stablelog.spark.planning import TaskLimits
from tests.spark.at_cuts import Query
from tests.spark.histories import Writers, truth
from tests.spark.reading import make, rows, settled, tasks
from tests.spark.segments.test_times import FIRST_MS, check_events, filled_with_events, ways
from tests.spark.source.test_behind_open import FIRST_MS as LATER_MS
from tests.spark.source.test_behind_open import Held

pytestmark = [pytest.mark.java]
COLUMNS = ("partition", "offset", "value")


@pytest.fixture(scope="module")
def kafka(shared_kafka):
    return shared_kafka


@pytest.fixture(scope="module")
def history(kafka):
    make(kafka.bootstrap, "history", 2, **{"internal.segment.bytes": "3000", "index.interval.bytes": "200"})
    writers = Writers(kafka.bootstrap, "history", 2, 3)
    for _ in range(60):
        writers.step()
    writers.end_all()
    settled(kafka.bootstrap, "history")
    return "history"


@pytest.mark.extended
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_running_kafka_is_read_as_its_clients_read_it(kafka, history, isolation):
    wanted = truth(kafka.bootstrap, history, 2, isolation)
    given = {"bootstrap": kafka.bootstrap, "subscribe": history, "isolation": isolation}
    for scan, target_size in (("fetch", None), ("fetch", 500), ("files", None), ("files", 500)):
        planned = tasks({**given, "scan": scan}, TaskLimits(target_size=target_size))
        assert all(bool(piece.extents) == (scan == "files") for pieces in planned for piece in pieces)
        assert sorted(rows(given, *COLUMNS, planned=planned)) == wanted
    assert count({**given, "scan": "fetch"}) == count(given) == len(wanted)


@pytest.mark.extended
def test_a_range_of_times_ends_at_a_record_and_not_at_the_marker_that_kafka_answers(kafka, tmp_path):
    topic = filled_with_events(kafka.bootstrap, **{"internal.segment.bytes": "3000"})
    with BlockingCluster(kafka.bootstrap) as cluster:
        place = (topic, 0)
        assert cluster.list_offsets({place: FIRST_MS + 75})[place].offset == 50, "the first marker's"
    for way in ways(kafka, topic, tmp_path):
        check_events(way)


def test_the_directory_of_a_running_kafka_is_refused_without_its_address(kafka, history):
    with pytest.raises(UsageError, match=f"{kafka.data} is in use by a running broker"):
        tasks({"path": str(kafka.data), "subscribe": history})


@pytest.mark.parametrize("bears", ["true", "false"])
def test_a_stream_begins_behind_an_open_transaction(kafka, bears):
    held = Held(kafka)
    given = held.given(scan="fetch", failOnDataLoss=bears)
    by_offset = Query({**given, "startingOffsets": held.at(25)}, "offset").start()
    by_time = Query({**given, "startingTimestamp": str(LATER_MS + 1000)}, "offset").start()
    assert [query.planned[0][held.topic] for query in (by_offset, by_time)] == [{"0": 25}, {"0": 20}]
    assert by_offset.batches() == by_time.batches() == []
    held.end()
    settled(kafka.bootstrap, held.topic)
    (later,) = by_offset.batches()  # Kafka may write the marker after the record.
    assert later in ([(25,)], [(26,)])
    assert by_time.batches() == [[(20,), (21,), (22,), (23,), (24,), *later]]
    by_offset.stop()
    by_time.stop()
