"""Reads of the objects while the broker that writes and deletes them is killed: each is whole, and none goes back."""

import threading

import pytest

from tests.broker.tiering.kills import DELETING, KILLS, TIERED, copied_count, kill, log_start, stop, written
from tests.scale import randomness
from tests.spark.reading import rows
from tests.waiting import until

pytestmark = pytest.mark.extended


class Reader(threading.Thread):
    """Reads all of the store again and again, until it is told to stop.

    Attributes:
        reads: the values of each read.
        failure: the error of a read; None if there is none.
    """

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.stopping = url, threading.Event()
        self.reads, self.failure = [], None

    def run(self):
        while not self.stopping.is_set() and self.failure is None:
            try:
                self.read()
            except Exception as error:
                self.failure = error

    def read(self):
        found = rows({"path": self.url, "subscribe": "t"}, "value")
        self.reads.append([value.rstrip() + b" " for (value,) in found])


@pytest.mark.timeout(200 + 10 * KILLS)
@pytest.mark.parametrize(
    "config",
    [pytest.param(TIERED, id="whole"), pytest.param(DELETING, id="deleting", marks=pytest.mark.night)],
)
def test_each_read_of_the_objects_is_a_run_of_committed_records_when_the_broker_is_killed(config, tmp_path):
    chance = randomness("kills and reads of objects", KILLS)
    store = tmp_path / "store"
    # Spark's pins are what keeps the objects of a read: the delay of deletions does not.
    with written(tmp_path, config, stablelog_remote_delete_delay_ms=0) as (broker, writer):
        until(lambda: copied_count(store) > 1, "nothing is copied")
        reader = Reader(store.as_uri())
        reader.start()
        for _ in range(KILLS):
            read_count, start, written_count = len(reader.reads), log_start(store), len(writer.committed)
            kill(broker, chance)
            until(
                lambda count=read_count: len(reader.reads) > count or reader.failure,
                "nothing is read",
                patience_s=60,
            )
            # A broker that is killed before a client finds it again would never be killed at work.
            until(
                lambda count=written_count: len(writer.committed) > count,
                "nothing is committed",
                patience_s=60,
            )
            if config is DELETING:
                until(lambda start=start: log_start(store) > start, "nothing is marked for deletion")
        least = min(len(found) for found in reader.reads if found)
        if config is TIERED:
            until(lambda: len(reader.reads[-1]) > least or reader.failure, "nothing more is copied")
        stop(writer)
        reader.stopping.set()
        reader.join(60)
        assert reader.failure is None
        reader.read()
    places = {value: place for place, value in enumerate(writer.committed)}
    ends = []
    for found in filter(None, reader.reads):
        first = places[found[0]]
        assert found == writer.committed[first : first + len(found)]
        ends.append(first + len(found))
    assert ends == sorted(ends)
    if config is TIERED:
        assert all(places[found[0]] == 0 for found in filter(None, reader.reads))
