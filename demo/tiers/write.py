"""The producers of the scene: one for each airport, with one transaction for each day of departures."""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Producer

from demo.flights import AIRPORTS, Flight
from demo.tasks import Task
from demo.tiers import TOPIC
from demo.tiers.proof import Reading

TIMEOUT_S = 60
DAYS_PER_S = 30.0  # a month of the year 2013 in a second
ABORT_EVERY = 40  # days

Days = dict[str, list[Flight]]


def by_day(flights: Iterable[Flight], airport: str) -> Days:
    """Group an airport's flights by the day of departure, in the order of the days."""
    days: Days = defaultdict(list)
    for flight in flights:
        if flight.origin == airport:
            days[flight.hour[:10]].append(flight)
    return {day: days[day] for day in sorted(days)}


def first_days(days: Days, count: int) -> Days:
    """Return the first days."""
    return dict(itertools.islice(days.items(), count))


def rows_of_whole_days(
    days: Iterable[Days], reading: Reading, ends: Sequence[int], *, with_marker: bool
) -> set[int]:
    """Return the rows of the days whose transactions are whole before an end offset of their partition.

    Args:
        days: the days of each airport, which were written in one transaction each.
        reading: has the places of the rows.
        ends: the end offset of each partition.
        with_marker: whether the marker must be before the end offset, too.
    """
    places = dict(zip(reading.rows, reading.places, strict=True))
    found: set[int] = set()
    for flights in itertools.chain.from_iterable(each.values() for each in days):
        last = max(places[flight.row] for flight in flights)
        if last.offset + with_marker < ends[last.partition]:  # the marker is the next record of the partition
            found.update(flight.row for flight in flights)
    return found


class Writer(Task):
    """A transactional producer, which writes its days at a steady pace. Some days are aborted first, and then written.

    Args:
        airport: whose flights it writes, into a partition of its own.
        days: the flights by day.
        bootstrap: the broker's address.
        batch_size: bytes of a record batch; a segment must have room for it.
        tell: is called with the number of flights of each committed transaction.
    """

    def __init__(
        self, airport: str, days: Days, bootstrap: str, batch_size: int, tell: Callable[[int], object]
    ) -> None:
        super().__init__(f"the producer of {airport}")
        self._airport = airport
        self._days = days
        self._tell = tell
        self._settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"airport-{airport}",
            "linger.ms": 20,
            "batch.size": batch_size,
            "log_level": 0,
            "error_cb": lambda _error: None,
        }
        self.aborted_count = 0  # transactions
        self.aborted_record_count = 0

    def work(self) -> None:
        """Write all days."""
        if not self._days:
            return
        producer = Producer(self._settings)
        producer.init_transactions(TIMEOUT_S)
        place = AIRPORTS.index(self._airport)
        abort_every = min(ABORT_EVERY, max(len(self._days) // 2, 1))
        begun_s = time.monotonic()
        for number, flights in enumerate(self._days.values()):
            due_s = begun_s + number / DAYS_PER_S
            if self.stopping.wait(max(due_s - time.monotonic(), 0)):
                return
            # The airports abort different days.
            if (number + place * abort_every // len(AIRPORTS)) % abort_every == abort_every - 1:
                self._write(producer, place, flights, doomed=True)
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
                self.aborted_count += 1
                self.aborted_record_count += len(flights)
            self._write(producer, place, flights, doomed=False)
            producer.commit_transaction(TIMEOUT_S)
            self._tell(len(flights))

    def _write(self, producer: Producer, partition: int, flights: list[Flight], *, doomed: bool) -> None:
        producer.begin_transaction()
        for flight in flights:
            value = flight.encode(doomed=doomed)
            producer.produce(TOPIC, value, key=flight.carrier.encode(), partition=partition)
        producer.poll(0)
