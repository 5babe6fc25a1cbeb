"""The second scene: what it writes, what it counts, and a slice of it as it stands."""

import io
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from demo.busy import EXIT_CODE, LateError
from demo.cuts.hours import LATE, plan
from demo.cuts.ledger import Ledger
from demo.cuts.picture import WIDTH, draw
from demo.cuts.scene import report
from demo.cuts.spark_watch import BY_CUT, BY_OFFSETS, MicroBatch, SparkWatch, summarize
from demo.flights import AIRPORTS
from demo.tasks import Task
from tests.demo.drawn import check_legible, labels_of

READERS = ("one", "other")


@pytest.mark.extended
def test_each_row_is_in_one_transaction_that_knows_its_size():
    planned = plan(1500)
    sizes = Counter()
    for work in planned.all():
        flights = sum(not record.is_weather for record in work.records)
        assert {record.value["txn"] for record in work.records} == {work.name}
        assert all(
            record.value["sizes"] == {"flights": flights, "weather": len(work.records) - flights}
            for record in work.records
        )
        sizes["flights"] += flights
        sizes["transactions"] += 1
    assert sizes["flights"] == 1500
    assert len({work.name for work in planned.all()}) == sizes["transactions"]


def test_the_late_transaction_writes_for_every_airport_what_nobody_else_writes():
    planned = plan(1500)
    late = {(record.airport, record.value["hour"]) for record in planned.late.records}
    others = {
        (record.airport, record.value["hour"])
        for works in planned.works.values()
        for work in works
        for record in work.records
    }
    assert {airport for airport, _ in late} == set(AIRPORTS)
    assert not late & others
    assert planned.late.name == LATE


def test_a_reader_is_behind_from_a_commit_until_it_has_the_last_record():
    ledger = Ledger(READERS)
    ledger.committed("a", 2)
    ledger.saw("one", "a", doomed=False)
    moment = ledger.look()
    assert (moment.behind_count("one"), moment.behind_count("other")) == (1, 2)
    assert "a" in ledger.sights["one"].waiting
    ledger.saw("one", "a", doomed=False)
    moment = ledger.look()
    assert moment.behind_s["one"] == 0.0
    assert len(ledger.sights["one"].delays_s) == 1
    assert not ledger.is_all_read()


def test_a_record_may_be_seen_before_its_writer_is_told_of_the_commit():
    ledger = Ledger(READERS)
    for reader in READERS:
        ledger.saw(reader, "a", doomed=False)
    ledger.committed("a", 1)
    moment = ledger.look()
    assert moment.behind_s == {"one": 0.0, "other": 0.0}
    assert moment.behind_count("one") == 0
    assert ledger.is_all_read()


def test_aborted_records_that_are_seen_are_counted():
    ledger = Ledger(READERS)
    ledger.saw("one", "a", doomed=True)
    assert [sight.doomed_count for sight in ledger.sights.values()] == [1, 0]


class Failing(Task):
    def work(self) -> None:
        raise ValueError("no room")


def test_a_thread_that_fails_ends_the_scene_with_a_sentence():
    task = Failing("the writer")
    task.start()
    task.join()
    with pytest.raises(SystemExit, match="the writer failed: no room"):
        task.is_running()


class Spark:
    """The Spark job, had it said this: of each query the transactions that each micro-batch has torn, a second each."""

    def __init__(self, record_count: int, torn: dict[str, list[list[str]]], began_at: float = 0.0) -> None:
        self._began_at = began_at
        self.offsets_per_batch = 100
        self._record_count = record_count
        self._torn = torn

    def batches(self, query: str) -> list[MicroBatch]:
        torn = self._torn[query]
        sizes = [self._record_count - len(torn) + 1, *(1 for _ in torn[1:])]
        return [
            MicroBatch(
                query,
                batch_id,
                self._began_at + batch_id,
                self._began_at + batch_id + 1,
                size,
                10,
                names,
                len(names),
                0,
            )
            for batch_id, (size, names) in enumerate(zip(sizes, torn, strict=True))
        ]

    def summary(self, query: str):
        return summarize(self.batches(query))


def seen_by_all(planned) -> Ledger:
    ledger = Ledger(READERS)
    ledger.begin()
    ledger.opened()
    for work in planned.all():
        ledger.committed(work.name, len(work.records))
        for reader in READERS:
            for _ in work.records:
                ledger.saw(reader, work.name, doomed=False)
        ledger.look()
    ledger.closed()
    return ledger


def reported(torn: dict[str, list[list[str]]], *, missing_count: int = 0) -> tuple[bool, str]:
    planned = plan(300)
    record_count = sum(len(work.records) for work in planned.all())
    console = Console(file=io.StringIO(), width=100)
    ok = report(console, planned, seen_by_all(planned), Spark(record_count - missing_count, torn))
    return ok, console.file.getvalue()


def test_a_transaction_in_three_pieces_is_torn_once():
    ok, said = reported({BY_OFFSETS: [["a"], ["a", "b"], ["a"]], BY_CUT: [[], []]})
    assert ok
    assert re.search(r"torn transactions by offsets +2 of", said)
    assert re.search(r"torn transactions by cut +0 of", said)


def test_the_scene_fails_if_a_cut_tears_a_transaction():
    ok, said = reported({BY_OFFSETS: [["a"]], BY_CUT: [["JFK 2013-01-01T10:00:00Z"]]})
    assert not ok
    assert "by cut 1 were torn, such as JFK 2013-01-01T10:00:00Z" in said


def test_the_scene_fails_if_records_are_missing():
    ok, said = reported({BY_OFFSETS: [["a"]], BY_CUT: [[]]}, missing_count=1)
    assert not ok
    assert "Spark's query by cut saw" in said


def test_the_scene_says_so_if_offsets_tear_nothing():
    ok, said = reported({BY_OFFSETS: [[]], BY_CUT: [[]]})
    assert ok
    assert "nothing keeps them whole" in said


def test_the_picture_is_drawn_of_whatever_was_seen(tmp_path):
    planned = plan(300)
    spark = Spark(1, {BY_OFFSETS: [["a <&>"]], BY_CUT: [[]]})
    draw(tmp_path / "cuts.svg", planned, seen_by_all(planned), spark)
    words = "".join(ET.parse(tmp_path / "cuts.svg").getroot().itertext())
    check_legible(tmp_path / "cuts.svg", width=WIDTH)
    assert "torn transactions: 1 · flights without their weather: 1" in words
    assert "torn transactions: 0 · flights without their weather: 0" in words


def test_the_picture_says_how_high_the_bars_are_and_what_their_numbers_count(tmp_path):
    path, planned = tmp_path / "cuts.svg", plan(300)
    ledger = seen_by_all(planned)
    torn = {BY_OFFSETS: [["a", "b", "c"], ["c"]], BY_CUT: [[], []]}
    draw(path, planned, ledger, Spark(2, torn, ledger.began_at))
    check_legible(path, width=WIDTH)
    words = [element.text for element in ET.parse(path).getroot().iter() if element.text]
    assert words.count("transactions") == 2
    assert words.count("records") == 1
    levels = [int(label.words) for label in labels_of(path) if label.right < 90 and label.words.isdigit()]
    assert levels[-6:] == [0, 5, 10] * 2  # the bars are of ten transactions
    assert words.count("3") == words.count("1") == 1
    assert any(each.startswith("Its height counts the transactions") for each in words)
    assert any(each.endswith("the number counts them") for each in words)


@pytest.mark.parametrize(("code", "kind"), [(1, SystemExit), (EXIT_CODE, LateError)])
def test_a_spark_job_that_came_too_late_makes_the_scene_late(tmp_path, code, kind):
    class Jobs:
        def start(self, *_, errors):
            errors.write_text("Python worker failed")
            return subprocess.Popen(
                [sys.executable, "-c", f"raise SystemExit({code})"], stdout=subprocess.PIPE, text=True
            )

    watch = SparkWatch(Jobs(), "nowhere", tmp_path / "checkpoint", 1)
    watch.start()
    watch.join()
    with pytest.raises(SystemExit, match=r"(?s)the Spark job failed: .*Python worker failed") as ended:
        watch.is_running()
    assert type(ended.value) is kind


@pytest.mark.spark
@pytest.mark.night
def test_a_slice_of_the_scene_tears_nothing_by_cut(tmp_path):
    picture = tmp_path / "cuts.svg"
    command = [sys.executable, "-m", "demo", "cuts", "--rows", "1000", "--picture", str(picture)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=800, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"torn transactions by cut +0 of [1-9]", done.stdout), done.stdout
    assert re.search(r"torn transactions by offsets +[0-9]+ of [1-9]", done.stdout), done.stdout
    assert "the long transaction was committed after" in done.stdout
    assert ET.parse(picture).getroot().tag.endswith("svg")
