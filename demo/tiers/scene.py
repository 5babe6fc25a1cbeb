"""`make demo-tiers`: a log in two tiers, read across both, from the objects alone, and after a restore from them.

Three producers, one for each airport, write the flights of eleven months, with a transaction for each day. Some
transactions are aborted on purpose. The broker seals small segments, copies them to an object store, and keeps only the
newest of them on its disk. A consumer reads across both tiers. Then the broker is killed with -9, and Spark reads the
objects without it. The disk is wiped, and a new data directory is restored from the store. A consumer reads everything
that the store has, and the producers go on with each flight that the log lacks. After each read, every record is
compared with its row of the source file.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import stablelog
from demo.busy import LateError
from demo.children import Children
from demo.flights import AIRPORTS, Flight, read_flights
from demo.tiers import STORE_URL, TOPIC
from demo.tiers.backfill import Backfill
from demo.tiers.picture import draw
from demo.tiers.proof import Reading, Source, prove
from demo.tiers.read import Reader
from demo.tiers.report import report, said_of
from demo.tiers.restore import restore, show, wipe
from demo.tiers.results import DISK_LOST, SPARK, Phase, Read, Results
from demo.tiers.segments import Fetched, Metrics, Tier, Watch
from demo.tiers.store import GET_LOG, KINDS, READS
from demo.tiers.store_watch import StoreWatch
from demo.tiers.write import Days, Writer, by_day, first_days, rows_of_whole_days
from stablelog.embedded import EmbeddedBroker

ROWS_MIN = 4_000  # fewer flights fill too few segments
DELAY_MS = 5.0
WRITTEN_PART = 11 / 12  # of the days, before the disk is lost
SEGMENT_SIZE_MIN, SEGMENT_SIZE_MAX = 32 << 10, 512 << 10
BATCH_SIZE_MAX = 64 << 10
SEGMENTS_KEPT = 3  # on the local disk, for each partition
COPY_S_MAX = 60.0
SETTINGS = {
    "stablelog_remote_url": STORE_URL,
    "stablelog_remote_allow_http": True,
    "remote_log_manager_task_interval_ms": 500,
    "log_retention_check_interval_ms": 500,
    "log_segment_delete_delay_ms": 0,
    "rlmm_config_remote_log_metadata_topic_num_partitions": 3,
    "stablelog_metrics_port": 0,
}


def play(console: Console, children: Children, data: Path, row_count_max: int | None, picture: Path) -> bool:
    """Play the scene. Returns whether every reader has found every record once, and no aborted one."""
    if row_count_max is not None and row_count_max < ROWS_MIN:
        raise SystemExit(
            f"--rows: this scene needs at least {ROWS_MIN:,} flights, which fill several segments"
        )
    flights = list(read_flights(row_count_max))
    console.print(
        f"[bold]{len(flights):,} flights[/bold] through a log in {data}, with an object store behind it",
        highlight=False,
        soft_wrap=True,
    )
    data.parent.mkdir(parents=True, exist_ok=True)
    store = StoreWatch(children, DELAY_MS)
    with store.reachable(), contextlib.closing(children):
        results = Scene(console, children, store, data, flights, row_count_max).play()
    draw(picture, results)
    return report(console, results)


class Scene:
    """The scene, step by step."""

    def __init__(
        self,
        console: Console,
        children: Children,
        store: StoreWatch,
        data: Path,
        flights: list[Flight],
        row_count_max: int | None,
    ) -> None:
        self._console = console
        self._children = children
        self._store = store
        self._data = data
        self._flights = flights
        self._row_count_max = row_count_max
        self._most = "eleven months" if row_count_max is None else "most days"  # before the disk is lost
        self._most_days = {airport: most_of(by_day(flights, airport)) for airport in AIRPORTS}
        self._source = Source(flights)
        self._watch = Watch()
        segment_size = min(max(len(flights) * 8 // 5, SEGMENT_SIZE_MIN), SEGMENT_SIZE_MAX)
        self._results = Results(len(flights), segment_size=segment_size, delay_ms=DELAY_MS)

    def play(self) -> Results:
        """Play all steps."""
        self._watch.start()
        log = self._data.with_name("spark.log")
        backfill = Backfill(self._children, self._store.endpoint, self._row_count_max, log)
        with self._serving() as broker:
            create_topic(broker.bootstrap, self._results.segment_size)
            written = self._write_most(broker)
            reading = self._read_both(broker, written)
            in_store = self._whole_in_store(reading, with_marker=False)
            broker.kill()
        self._read_objects(backfill, reading)
        lost_s = self._watch.now_s()
        ranges = self._lose_disk()
        with self._serving() as broker:
            self._results.phases.append(Phase(DISK_LOST, lost_s, self._watch.now_s()))
            self._tell_of_restore(ranges)
            self._read_restored_and_go_on(broker, in_store)
        self._watch.stop()
        self._results.segments = self._watch.segments()
        self._results.requests = self._store.requests().counts
        return self._results

    @contextlib.contextmanager
    def _serving(self) -> Iterator[EmbeddedBroker]:
        with stablelog.serve(self._data, **SETTINGS) as broker:
            self._watch.follow(broker)
            yield broker

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start_s = self._watch.now_s()
        yield
        self._results.phases.append(Phase(name, start_s, self._watch.now_s()))

    @contextlib.contextmanager
    def _progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar while the block runs, which is given a function that advances the bar."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(f"  {what}", total=total)
            yield lambda count: progress.advance(task, count)

    def _tell(self, words: str) -> None:
        number = len(self._results.phases)
        self._console.print(f"  [bold]{number}[/bold]  {words}", highlight=False, soft_wrap=True)

    def _write_most(self, broker: EmbeddedBroker) -> set[int]:
        """Write most days, and wait for the copies. Return the rows that were written."""
        with self._phase(f"{self._most} are written"):
            self._write(broker, self._most_days, f"writing {self._most}")
            with self._console.status("the last sealed segments are copied"):
                metrics = Metrics(broker)
                wait_until(lambda: metrics.copy_lag() == 0, "the sealed segments are not copied")
                wait_until(lambda: self._watch.count(Tier.STORE) > 0, "no segment has left the disk")
        self._watch.look()
        count = self._watch.count
        self._tell(
            f"{self._most} are written, {self._results.aborted_count} transactions aborted on purpose: "
            f"{count(Tier.STORE)} segments are only in the store, {count(Tier.BOTH)} also on the disk, "
            f"{count(Tier.GROWING)} still grow"
        )
        return {flight.row for each in self._most_days.values() for day in each.values() for flight in day}

    def _write(self, broker: EmbeddedBroker, days: dict[str, Days], what: str) -> None:
        total = sum(len(flights) for each in days.values() for flights in each.values())
        batch_size = min(self._results.segment_size // 2, BATCH_SIZE_MAX)
        with self._progress(what, total) as advance:
            writers = [
                Writer(airport, each, broker.bootstrap, batch_size, advance) for airport, each in days.items()
            ]
            for writer in writers:
                writer.start()
            while any([task.is_running() for task in writers]):  # noqa: C419 - each of them may have failed
                self._watch.is_running()
                time.sleep(0.05)
        self._results.transaction_count += sum(len(each) for each in days.values())
        self._results.aborted_count += sum(writer.aborted_count for writer in writers)
        self._results.aborted_record_count += sum(writer.aborted_record_count for writer in writers)

    def _read_both(self, broker: EmbeddedBroker, written: set[int]) -> Reading:
        """Read across both tiers."""
        reader = Reader(broker.bootstrap, self._source)

        def read() -> Reading:
            with self._progress("a consumer reads both tiers", len(written)) as advance:
                return reader.read_to_end(advance)

        reading = self._read("consumer, both tiers", "written by then", read, written, {Tier.STORE}, broker)
        reader.close()
        self._results.lost_count = len(written - self._whole_in_store(reading, with_marker=False))
        return reading

    def _read_objects(self, backfill: Backfill, reading: Reading) -> None:
        """Let Spark read the objects. No broker runs.

        Spark gets the transactions that have ended within the store. Of a later one it cannot know the end.
        """
        expected = self._whole_in_store(reading, with_marker=True)
        tiers = {Tier.STORE, Tier.BOTH}
        with self._console.status("Spark reads the objects, and no broker runs"):
            self._read(
                SPARK,
                "whole in the store",
                backfill.read,
                expected,
                tiers,
                prepare=backfill.wait_until_ready,
            )

    def _whole_in_store(self, reading: Reading, *, with_marker: bool) -> set[int]:
        """Return the rows of the transactions that are whole in the store. A restore writes a missing marker again, if
        the store has all records of the transaction.
        """
        ends = self._watch.remote_ends
        return rows_of_whole_days(self._most_days.values(), reading, ends, with_marker=with_marker)

    def _lose_disk(self) -> list[dict[str, Any]]:
        """Wipe the disk of the killed broker, and restore the data directory. Return the report of the restore."""
        with self._console.status("the disk is wiped, and restored from the store"):
            wipe(self._data)
            self._watch.look()
            return restore(self._children, self._data)

    def _tell_of_restore(self, ranges: list[dict[str, Any]]) -> None:
        phase = self._results.phases[-1]
        self._tell(
            "the disk of the killed broker is wiped; it is restored from the store, and the broker serves again after "
            f"{phase.end_s - phase.start_s:.1f} s, without the {self._results.lost_count:,} flights of transactions "
            "that were not whole in the store"
        )
        show(self._console, ranges)

    def _read_restored_and_go_on(self, broker: EmbeddedBroker, in_store: set[int]) -> None:
        """Read what the store has. Write each flight that is missing, and read on."""
        reader = Reader(broker.bootstrap, self._source)

        def read() -> Reading:
            with self._progress("a consumer reads what the store has", len(in_store)) as advance:
                return reader.read_to_end(advance)

        reading = self._read(
            "consumer, restored log", "restored from the store", read, in_store, {Tier.STORE}, broker
        )
        rows = set(reading.rows)
        missing = [flight for flight in self._flights if flight.row not in rows]

        def go_on() -> Reading:
            days = {airport: by_day(missing, airport) for airport in AIRPORTS}
            self._write(broker, days, "the producers write what is missing")
            with self._progress("the consumer reads on", len(missing)) as advance:
                return reader.read_to_end(advance)

        everything = [flight.row for flight in self._flights]
        self._read("consumer, goes on", "of the source, with those of 5", go_on, everything, set(), broker)
        reader.close()

    def _read(
        self,
        name: str,
        scope: str,
        read: Callable[[], Reading],
        expected: Collection[int],
        tiers: Collection[Tier],
        broker: EmbeddedBroker | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> Reading:
        """Have the topic read, and compare every record with its row.

        Args:
            name: of the phase.
            scope: which flights the reader has to find, in words.
            read: reads, and returns all records of this reader up to now.
            expected: the rows that the reader has to find.
            tiers: the segments that are in these tiers now have to be read from the store.
            broker: the broker that serves the reads; None if the reader takes the objects itself.
            prepare: belongs to the phase, and is not measured.
        """
        remote = [segment for segment in self._watch.segments() if segment.tier in tiers]
        with self._phase(name):
            if prepare is not None:
                prepare()
            before, fetched = self._store.requests(), Fetched(broker)
            begun_s = time.monotonic()
            reading = read()
            seconds = time.monotonic() - begun_s
        requests = self._store.requests().since(before)
        local_size, store_size = fetched.sizes() if broker else (0, requests.sizes[GET_LOG])
        counts = Counter({kind: requests.counts[kind] for kind in (READS if broker else KINDS)})
        last = reading.last_offsets()
        segment_count = sum(one.base_offset <= last.get(one.partition, -1) for one in remote)
        number, verdict = len(self._results.phases), prove(expected, reading)
        done = Read(
            name,
            number,
            scope,
            len(expected),
            verdict,
            seconds,
            local_size,
            store_size,
            counts,
            segment_count,
        )
        self._results.reads.append(done)
        self._tell(said_of(done))
        return reading


def most_of(days: Days) -> Days:
    """Return the days that are written before the disk is lost."""
    return first_days(days, int(len(days) * WRITTEN_PART))


def create_topic(bootstrap: str, segment_size: int) -> None:
    """Create the topic of the flights, with a partition for each airport, small segments, and a small local tier."""
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": str(segment_size),
        "local.retention.bytes": str(SEGMENTS_KEPT * segment_size),
    }
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, len(AIRPORTS), 1, config=config)])[TOPIC].result()


def wait_until(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait until a condition holds.

    Raises:
        LateError: it does not hold after COPY_S_MAX.
    """
    deadline_s = time.monotonic() + COPY_S_MAX
    while not is_so():
        if time.monotonic() > deadline_s:
            raise LateError(f"{otherwise} after {COPY_S_MAX:g} s")
        time.sleep(0.05)
