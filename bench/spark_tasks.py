"""What does planning a read cost however many segments there are, and what memory does a task take however large they are?

Planning reads a directory of segments as a broker would have sealed them, by `load(path)`: no broker helps. It is
asked once anew, as a batch read does, and again, as a stream's planner does with what it knows. Memory is anonymous
memory, without mapped files, the most of it that a process of its own ever has: at every Arrow batch that it hands out
or takes.

    python -m bench --only spark-plan
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import stablelog
from bench.contestants import OURS, memory_mb
from bench.report import Section
from bench.spark_session import arrow_rows, make_topic
from stablelog.batch.header import Codec
from stablelog.batch.records import Record, encode_batch
from stablelog.env.local_disk import LocalDisk
from stablelog.log.indexes.summary import Summary
from stablelog.log.opening import open_partition
from stablelog.log.partition import LogConfig
from stablelog.spark.options import ReadOptions, read_options, write_options
from stablelog.spark.planning import plan_tasks
from stablelog.spark.source.reader import limits, open_log
from stablelog.spark.source.resolve import batch_ranges

SEGMENT_COUNTS = (10, 1_000, 100_000)
WIDTH = 1_000  # offsets of a segment
MIB = 1 << 20
NOW_MS = 1_700_000_000_000
READS = (  # bytes of the segment, of a record batch, of a value, codec
    (16 * MIB, 16 << 10, 100, Codec.NONE),
    (512 * MIB, 16 << 10, 100, Codec.NONE),
    (512 * MIB, 1 * MIB, 100, Codec.NONE),
    (512 * MIB, 1 * MIB, 1000, Codec.ZSTD),
    (512 * MIB, 64 * MIB, 1000, Codec.ZSTD),
)
WRITES = ((16 * MIB, 100), (512 * MIB, 100), (512 * MIB, 100_000))  # bytes of all rows, of a value
IDLE = "import pyarrow, numpy, sys; from bench.contestants import memory_mb; print(memory_mb('self'))"
READ = """
import sys; from bench.spark_tasks import read_memory_mb
print(read_memory_mb({"path": sys.argv[1]}))
"""
WRITE = """
import sys; from bench.spark_tasks import write_memory_mb
print(write_memory_mb(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


# -- planning --------------------------------------------------------------------------------------------------


def fill_segments(directory: Path, count: int) -> None:
    """A partition of so many sealed segments and a growing one; each has one batch, of its last record only."""
    directory.mkdir(parents=True)
    for number in range(count + 1):
        base = number * WIDTH
        batch = bytearray(encode_batch([Record(0, 1, None, b"value")]))
        batch[:8] = (base + WIDTH - 1).to_bytes(8, "big")  # the CRC does not cover it
        stem = f"{directory}/{base:020d}"
        _write(f"{stem}.log", batch)
        if number < count:
            summary = Summary(
                base,
                base + WIDTH,
                first_timestamp=1,
                max_timestamp=1,
                log_size=len(batch),
                record_count=1,
                committed_count=1,
                stable_offset=base + WIDTH,
            )
            _write(f"{stem}.index", b"")
            _write(f"{stem}.summary", summary.encode())


def _write(path: str, content: bytes | bytearray) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(content)


def planned(options: ReadOptions) -> Callable[[], int]:
    """A planner that keeps what it knows; called, it plans the whole log and returns the bytes that tasks read."""
    log = open_log(options)

    def again() -> int:
        ranges, topic_ids = batch_ranges(options, log)
        tasks = plan_tasks(log.spans(ranges, topic_ids), limits(options))
        return sum(piece.size for task in tasks for piece in task)

    return again


def planning(counts: Sequence[int], run_count: int) -> Section:
    """Plan reads of more and more segments."""
    section = Section("Planning a read of a partition, without a broker", beside="")
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="segments-") as data:
            directory = Path(data) / "events-0"
            fill_segments(directory, count)
            for _ in range(run_count):
                best = _timed(lambda: _look(directory))  # noqa: B023 - called at once
                options = read_options({"path": data})
                planners: list[Callable[[], int]] = []
                anew = _timed(lambda: planners.append(planned(options)) or planners[-1]())  # noqa: B023
                again = _timed(planners[-1])
                for place, unit in enumerate(("ms", "ms of processor time")):
                    section.row(f"{count:,} segments, {unit}", limit=best[place]).add(OURS, anew[place])
                    section.row(f"{count:,} segments, again, {unit}").add(OURS, again[place])
    return section


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds on the clock, and of processor time."""
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - began) * 1000, (time.process_time() - cpu_began) * 1000


def _look(directory: Path) -> None:
    """What nobody can do without: list the files, and look at each segment's size."""
    for name in os.listdir(directory):
        if name.endswith(".log"):
            os.stat(f"{directory}/{name}")


# -- memory ----------------------------------------------------------------------------------------------------


class _Most:
    """The most anonymous memory that this process has had, of the times it was looked at."""

    def __init__(self) -> None:
        self.mb = 0.0

    def look(self) -> None:
        self.mb = max(self.mb, memory_mb("self"))


def read_memory_mb(given: Mapping[str, str]) -> float:
    """Read a log as tasks do, in this process, with these options; the most memory that it takes."""
    from stablelog.spark.schema import Columns, default_schema
    from stablelog.spark.source.reader import TaskPartition, read_task

    options = read_options(given)
    log = open_log(options)
    ranges, topic_ids = batch_ranges(options, log)
    most = _Most()
    for pieces in plan_tasks(log.spans(ranges, topic_ids), limits(options)):
        for _ in read_task(options, Columns(default_schema(include_headers=False)), TaskPartition(pieces)):
            most.look()
    return most.mb


def write_memory_mb(bootstrap: str, size: int, value_size: int) -> float:
    """Write rows as a task does, in this process; the most memory that it takes."""
    from stablelog.spark.sink.task import write_rows

    most = _Most()

    def rows() -> Iterator[object]:
        # Spark hands a sink 10,000 rows at once, and 64 MB at most.
        at_once = min(10_000, 64 * MIB // value_size)
        given = next(arrow_rows(at_once, value_size)).select(["key", "value"])
        for _ in range(max(size // (at_once * value_size), 1)):
            yield given
            most.look()

    options = write_options({"bootstrap": bootstrap, "topic": "memory"})
    write_rows(options, f"memory-{size}-{value_size}", 0, rows())
    return most.mb


def memory(divisor: int) -> Section:
    """Read and write in processes of their own."""
    section = Section("Anonymous memory of a task's process at most, MB", beside="")
    idle = _in_process(IDLE)
    for size, batch_size, value_size, codec in READS:
        with tempfile.TemporaryDirectory(prefix="memory-") as data:
            fill_log(Path(data) / "events-0", size // divisor, batch_size // divisor, value_size, codec)
            what = (
                f"read {_size(size // divisor)}, batches of {_size(batch_size // divisor)}, "
                f"values of {_size(value_size)}, {codec.name.lower()}"
            )
            section.row(what, limit=idle).add(OURS, _in_process(READ, data))
    with stablelog.serve(stablelog_flush="os", message_max_bytes="10000000") as broker:
        make_topic(broker.bootstrap, "memory")
        for size, value_size in WRITES:
            what = f"write {_size(size // divisor)}, values of {_size(value_size)}"
            asked = str(size // divisor), str(value_size)
            section.row(what, limit=idle).add(OURS, _in_process(WRITE, broker.bootstrap, *asked))
    return section


def _size(size: int) -> str:
    return f"{size // MIB} MB" if size >= MIB else f"{size >> 10} KB" if size >= 10_000 else f"{size:,} B"


def _in_process(program: str, *arguments: str) -> float:
    known = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | known,
    )
    return float(done.stdout)


def fill_log(directory: Path, size: int, batch_size: int, value_size: int, codec: Codec) -> None:
    """A partition with one segment of this size, of batches whose records have this size together."""
    count = max(batch_size // (value_size + 30), 1)
    value = os.urandom(value_size // 2) + bytes(value_size - value_size // 2)
    records = [Record(n, NOW_MS, b"0123456789abcdef", value) for n in range(count)]
    batch = encode_batch(records, codec=codec)
    config = LogConfig(segment_bytes=2 * size + 2 * len(batch), max_message_bytes=len(batch) + 1)
    directory.parent.mkdir(exist_ok=True)
    partition = open_partition(
        LocalDisk(), directory, config, topic="events", partition=0, clean=True, now_ms=NOW_MS
    )
    unpacked = count * (value_size + 30)
    for _ in range(max(size // unpacked, 1)):
        partition.append(batch, now_ms=NOW_MS)
    partition.assume_synced()
    partition.close()


def run(run_count: int, divisor: int) -> list[Section]:
    """All figures, in some minutes."""
    counts: Mapping[int, None] = dict.fromkeys(max(count // divisor, 10) for count in SEGMENT_COUNTS)
    return [planning(list(counts), run_count), memory(divisor)]
