"""`make demo`: a year of flights through the log, with crashes, and the proof that none was lost.

Three producers, one for each airport, write a transaction for each hour of departures. Some transactions are
aborted on purpose and written again; one producer is killed with -9 in the middle of one, and its successor fences
it; the broker itself is killed with -9 while they write. A read-committed consumer group follows all along. Then a
Spark pipeline streams the flights from the log and back into it, and its driver is killed with -9 in the middle. What
Spark finds in the end is put beside the source file.
"""

import contextlib
import queue
import subprocess
import threading
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import stablelog
from demo.busy import EXIT_CODE, LateError
from demo.children import Children
from demo.crashes import DELAYS_TOPIC, NAMED_TOPIC, TOPIC
from demo.crashes.drivers import Drivers, run_pipeline
from demo.crashes.follow import Follower
from demo.crashes.history import WRITTEN, History, read_transactions
from demo.crashes.picture import draw
from demo.crashes.proof import read_back, report
from demo.flights import AIRPORTS, Totals, by_hour, read_flights, totals
from stablelog.embedded import EmbeddedBroker

KILLED_AIRPORT = "JFK"
BROKER_KILLED_AT = 0.6  # of all rows
CATCH_UP_S = 300
SILENCE_MAX_S = 180
# Of producers: two or three are meant, and on a busy machine more may come too late for the broker.
RESTARTS_MAX = 12


class Fleet:
    """The producers: starts them, follows what they say, and replaces those that die."""

    def __init__(self, children: Children, bootstrap: str, row_count_max: int | None, hang_at: int) -> None:
        self._children = children
        self._bootstrap = bootstrap
        self._row_count_max = row_count_max
        self._hang_at = hang_at
        self._said: queue.Queue[tuple[str, str, int]] = queue.Queue()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.restarts = 0

    def start(self, airport: str, *, hangs: bool = False) -> None:
        """Start an airport's producer."""
        arguments = [self._bootstrap, airport]
        if self._row_count_max is not None:
            arguments += ["--rows", str(self._row_count_max)]
        if hangs:
            arguments += ["--hang-at", str(self._hang_at)]
        process = self._children.start("demo.crashes.produce", *arguments)
        self._processes[airport] = process
        threading.Thread(target=self._listen, args=(airport, process), daemon=True).start()

    def _listen(self, airport: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                word, number = line.split()
                self._said.put((airport, word, int(number)))
        self._said.put((airport, "ended", process.wait()))

    def next_said(self) -> tuple[str, str, int]:
        """What a producer says next: the airport, a word and a number.

        Raises:
            LateError: none has said anything for long.
        """
        try:
            return self._said.get(timeout=SILENCE_MAX_S)
        except queue.Empty:
            raise LateError(f"no producer has said anything for {SILENCE_MAX_S} s") from None

    def replace(self, airport: str, code: int) -> None:
        """Start a successor of a producer that is gone.

        Args:
            airport: whose producer it is.
            code: the exit code of the one that is gone.

        Raises:
            LateError: too many of them have gone, the last one because of a time limit.
            SystemExit: too many of them have gone, the last one for another reason.
        """
        self.restarts += 1
        if self.restarts > RESTARTS_MAX:
            kind = LateError if code == EXIT_CODE else SystemExit
            raise kind(f"producers have failed {self.restarts} times: the last one was {airport}'s")
        self.start(airport)

    def kill(self, airport: str) -> None:
        """Kill an airport's producer with -9."""
        self._processes[airport].kill()  # who listens to it waits for its end


def write_flights(
    console: Console,
    children: Children,
    broker: EmbeddedBroker,
    row_count: int,
    row_count_max: int | None,
    hang_at: int,
    history: History,
) -> tuple[int, int]:
    """Have all flights written, through both crashes.

    Returns:
        How many transactions were aborted on purpose, and how many producers had to be replaced.
    """
    fleet = Fleet(children, broker.bootstrap, row_count_max, hang_at)
    aborted = 0
    done: set[str] = set()
    written = 0
    broker_killed = False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("writing flights", total=row_count)
        for airport in AIRPORTS:
            fleet.start(airport, hangs=airport == KILLED_AIRPORT)
        while len(done) < len(AIRPORTS):
            airport, word, number = fleet.next_said()
            if word == "committed":
                written += number
                history.reached(WRITTEN, written)
                progress.advance(task, number)
            elif word == "aborted":
                aborted += 1
            elif word == "hangs":
                history.killed(f"the producer of {airport}", WRITTEN)
                fleet.kill(airport)
            elif word == "done":
                done.add(airport)
            elif word == "ended" and airport not in done:
                progress.console.print(
                    f"  {airport}: its producer is gone, a successor fences it and goes on"
                )
                fleet.replace(airport, number)
            elif word == "resumes" and number:
                progress.console.print(f"  {airport}: goes on behind {number:,} committed hours")
            if not broker_killed and written >= row_count * BROKER_KILLED_AT:
                broker_killed = True
                history.killed("the broker", WRITTEN)
                broker.kill()
                began = time.monotonic()
                broker.start()
                progress.console.print(f"  broker: killed -9, back after {time.monotonic() - began:.1f} s")
    return aborted, fleet.restarts


def wait_for(follower: Follower, row_count: int) -> None:
    """Wait until the follower has seen all flights.

    Raises:
        LateError: it has not after CATCH_UP_S.
    """
    deadline = time.monotonic() + CATCH_UP_S
    while (count := follower.followed.count) < row_count:
        if time.monotonic() > deadline:
            raise LateError(
                f"the consumer group has read {count:,} of {row_count:,} flights {CATCH_UP_S} s after the last commit"
            )
        time.sleep(0.05)


def play(console: Console, children: Children, data: Path, row_count_max: int | None, picture: Path) -> bool:
    """Play the scene. Returns whether nothing was lost, duplicated, or seen though aborted."""
    source = totals(read_flights(row_count_max))
    hours = len(by_hour(read_flights(row_count_max), KILLED_AIRPORT))
    console.print(f"[bold]{source.rows:,} flights[/bold] through a log in {data}")
    # Sixty segments or so: aborts and transactions that reach over their ends.
    with stablelog.serve(data, log_segment_bytes=4 << 20) as broker, contextlib.closing(children):
        return run(console, children, broker, source, row_count_max, hours // 3, picture)


def run(
    console: Console,
    children: Children,
    broker: EmbeddedBroker,
    source: Totals,
    row_count_max: int | None,
    hang_at: int,
    picture: Path,
) -> bool:
    """Write, follow, read back, draw. Returns whether all agrees."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topics = [NewTopic(TOPIC, len(AIRPORTS), 1), NewTopic(NAMED_TOPIC, 2, 1), NewTopic(DELAYS_TOPIC, 1, 1)]
    for created in admin.create_topics(topics).values():
        created.result()
    partition = AIRPORTS.index(KILLED_AIRPORT)
    history = History()
    follower = Follower(broker.bootstrap, history)
    follower.start()
    checkpoint = broker.data.parent / "checkpoint"
    with contextlib.closing(Drivers(children, broker.bootstrap, checkpoint, source.rows)) as drivers:
        aborted, restarts = write_flights(
            console, children, broker, source.rows, row_count_max, hang_at, history
        )
        console.print(
            f"  {aborted:,} transactions aborted on purpose, {restarts} producers replaced", highlight=False
        )
        wait_for(follower, source.rows)
        follower.stop()
        failures = run_pipeline(console, drivers, source.rows, history)
        console.print(
            f"  one Spark driver killed, {failures} replaced after errors of their own", highlight=False
        )
    with console.status("reading it all back with Spark"):
        proof = read_back(broker.bootstrap)
    ok = report(console, source, proof, follower.followed.count, follower.followed.doomed_count)
    name = f"{TOPIC}-{partition}"
    transactions = read_transactions(broker.data / name, history.began_ms)
    title = (
        f"{source.rows:,} flights through three kills: none lost, none twice"
        if ok
        else "The log and its source differ"
    )
    aborted_count = sum(not txn.committed for txn in transactions)
    shown = (
        f"Partition {name} ({KILLED_AIRPORT}): a box for each transaction near the kill; in all {len(transactions):,}, "
        f"{aborted_count:,} aborted"
    )
    draw(picture, title, shown, history, transactions)
    return ok
