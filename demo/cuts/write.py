"""Who writes: a producer for each airport, a transaction for each hour; and one who leaves its transaction open.

Each record goes to an ordinary topic and to a commit-ordered one, in the same transaction: the two sides differ by
nothing else.
"""

import threading

from confluent_kafka import Producer

from demo.cuts import COMMIT_ORDERED, ORDINARY
from demo.cuts.hours import Work
from demo.cuts.ledger import Ledger
from demo.flights import AIRPORTS
from demo.tasks import Task

TIMEOUT_S = 60
ABORT_EVERY = 20
SECONDS_PER_HOUR = 1 / 24  # a day of the year 2013 a second


class Pace:
    """How far the writers are, so that whoever waits for it need not look at a clock."""

    def __init__(self) -> None:
        self._reached = dict.fromkeys(AIRPORTS, 0)
        self._changed = threading.Condition()

    def reached(self) -> int:
        """The hour that all writers have reached."""
        return min(self._reached.values())

    def advance(self, airport: str, place: int) -> None:
        """A writer has reached an hour."""
        with self._changed:
            self._reached[airport] = place
            self._changed.notify_all()

    def wait_for(self, place: int, stopping: threading.Event) -> None:
        """Wait until all writers have reached an hour, or who waits is to stop."""
        with self._changed:
            while self.reached() < place and not stopping.is_set():
                self._changed.wait(0.1)


class Writer(Task):
    """A transactional producer."""

    def __init__(self, name: str, bootstrap: str, ledger: Ledger, pace: Pace) -> None:
        super().__init__(f"the producer of {name}")
        self._settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,
            "linger.ms": 0,
            "log_level": 0,
            "error_cb": lambda _error: None,
        }
        self.ledger = ledger
        self.pace = pace

    def prepare(self) -> None:
        """Be ready to write."""
        self._producer = Producer(self._settings)
        self._producer.init_transactions(TIMEOUT_S)

    def write(self, work: Work, *, doomed: bool = False) -> None:
        """Begin the transaction, and write its records, each to both kinds of topics."""
        self._producer.begin_transaction()
        for topics in (ORDINARY, COMMIT_ORDERED):
            for record in work.records:
                value, key = record.encode(doomed=doomed), record.key.encode()
                if record.is_weather:
                    partition = AIRPORTS.index(record.airport)
                    self._producer.produce(topics[1], value, key=key, partition=partition)
                else:
                    self._producer.produce(topics[0], value, key=key)
        self._producer.flush(TIMEOUT_S)

    def commit(self, work: Work) -> None:
        """Commit it, and tell the ledger."""
        self._producer.commit_transaction(TIMEOUT_S)
        self.ledger.committed(work.name, len(work.records))

    def abort(self) -> None:
        """Abort it, and tell the ledger."""
        self._producer.abort_transaction(TIMEOUT_S)
        self.ledger.aborted()


class AirportWriter(Writer):
    """Writes the hours of an airport as they come; every twentieth is aborted first, and written again."""

    def __init__(self, airport: str, works: list[Work], bootstrap: str, ledger: Ledger, pace: Pace) -> None:
        super().__init__(f"airport-{airport}", bootstrap, ledger, pace)
        self._airport = airport
        self._works = works

    def prepare(self) -> None:
        """Be ready to write, and write the first hour: who reads has something to get warm with."""
        super().prepare()
        self.write(self._works[0])
        self.commit(self._works[0])

    def work(self) -> None:
        """Write all others."""
        for number, work in enumerate(self._works[1:], 1):
            due_at_s = work.place * SECONDS_PER_HOUR
            if self.stopping.wait(max(0.0, due_at_s - self.ledger.now_s())):
                return
            self.pace.advance(self._airport, work.place)
            if number % ABORT_EVERY == ABORT_EVERY - 1:
                self.write(work, doomed=True)
                self.abort()
            self.write(work)
            self.commit(work)
        self.pace.advance(self._airport, 1 << 62)


class LateWriter(Writer):
    """Writes one transaction, in every partition, and leaves it open for long."""

    def __init__(self, late: Work, commit_place: int, bootstrap: str, ledger: Ledger, pace: Pace) -> None:
        super().__init__("late-writer", bootstrap, ledger, pace)
        self._late = late
        self._commit_place = commit_place

    def work(self) -> None:
        """Write it when its hour has come, and commit it when the others have come to another."""
        self.pace.wait_for(self._late.place, self.stopping)
        self.write(self._late)
        self.ledger.opened()
        self.pace.wait_for(self._commit_place, self.stopping)
        if not self.stopping.is_set():
            self.commit(self._late)
            self.ledger.closed()
