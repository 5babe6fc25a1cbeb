"""How fast do record batches become columns, and columns record batches? Without Spark: the decoder and the encoder.

Rows per second of one core, by CPU time, so that what else the machine does weighs little; the best of some runs.

    python -m bench.columns
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from stablelog.batch.header import Codec
from stablelog.batch.records import Record, encode_batch
from stablelog.client.producing import stamp
from stablelog.spark.decoder import Decoder
from stablelog.spark.encoder import Encoder

RUN_COUNT = 5
LOG_SIZE = 64 << 20
BATCH_SIZE = 16_384  # bytes of records in a batch: what Kafka's producers make
ROWS = 10_000  # what Spark hands to a sink at once
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
START = """
import time; began = time.process_time()
import pyarrow
from stablelog.batch.records import Record, encode_batch
there = time.process_time()
from stablelog.spark.decoder import Decoder
decoder = Decoder("t", 0, ["value"])
list(decoder.feed(encode_batch([Record(0, 0, b"k", b"v")]), 0, 1)), next(decoder.flush())
print(time.process_time() - there)
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """What was asked, and what came out."""

    what: str
    value: float
    unit: str
    wanted: float | None = None


def log_of(value_size: int, codec: Codec = Codec.NONE, aborted_every: int = 0) -> tuple[bytes, int]:
    """Record batches as a producer writes them, of random values and keys of 16 bytes. Returns them and their rows.

    Args:
        value_size: bytes of each value.
        codec: of the batches.
        aborted_every: of so many transactional batches, one is of producer 666, which aborts; 0 for no transactions.
    """
    count = max(BATCH_SIZE // (value_size + 30), 1)
    records = [
        Record(0, 1_700_000_000_000 + n, os.urandom(8).hex().encode(), os.urandom(value_size))
        for n in range(count)
    ]
    fates = {
        producer: encode_batch(
            records,
            codec=codec,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=bool(aborted_every),
        )
        for producer in (1, 666)
    }
    log, offset, rows = bytearray(), 0, 0
    while len(log) < LOG_SIZE:
        producer = 666 if aborted_every and (offset // count) % aborted_every == 0 else 1
        log += offset.to_bytes(8, "big") + fates[producer][8:]
        offset += count
        rows += count if producer == 1 else 0
    return bytes(log), rows


def best_rate(count: int, work: Callable[[], None], run_count: int) -> float:
    """Millions a second of CPU time."""
    best = float("inf")
    for _ in range(run_count):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return count / best / 1e6


def decode(
    log: bytes, rows: int, columns: tuple[str, ...], aborted: bool = False, check_crc: bool = True
) -> None:
    """Decode a log, as a task does."""
    decoder = Decoder("events", 0, columns, check_crc=check_crc)
    listed = [(666, 0)] if aborted else []
    found = sum(batch.num_rows for batch in decoder.feed(log, 0, 1 << 60, listed))
    assert found + sum(batch.num_rows for batch in decoder.flush()) == rows


def encode(batch: pa.RecordBatch, codec: str, times: int) -> None:
    """Encode and stamp Arrow batches, as a task does."""
    encoder = Encoder(codec, lingers=True)
    for _ in range(times):
        for one in encoder.encode(batch, topic="t", partition_counts={"t": 4}):
            stamp(one.batch, 1, 0, 0, transactional=True)
    for one in encoder.flush():
        stamp(one.batch, 1, 0, 0, transactional=True)


def decoding(run_count: int) -> list[Figure]:
    """The figures of the decoder."""
    figures = []
    for size, wanted in ((100, 6.0), (1000, 1.5)):
        log, rows = log_of(size)
        for title, columns, checked, goal in (
            ("all columns", ALL, True, wanted),
            ("all columns, CRC not checked", ALL, False, None),
            ("value, partition, offset", ("value", "partition", "offset"), True, None),
            ("timestamp", ("timestamp",), True, None),
            ("offset", ("offset",), True, None),
        ):
            rate = best_rate(
                rows,
                lambda log=log, rows=rows, c=columns, k=checked: decode(log, rows, c, check_crc=k),
                run_count,
            )
            figures.append(Figure(f"decode {size} B, {title}", rate, "M rows/s", goal))
    for codec in Codec:
        if codec:
            log, rows = log_of(100, codec)
            rate = best_rate(rows, lambda log=log, rows=rows: decode(log, rows, ALL), min(run_count, 2))
            figures.append(Figure(f"decode 100 B, all columns, {codec.name.lower()}", rate, "M rows/s"))
    log, rows = log_of(100, aborted_every=10)
    total = rows * 10 / 9
    dropped = best_rate(round(total), lambda: decode(log, rows, ALL, aborted=True), run_count)
    figures.append(Figure("decode 100 B, all columns, one batch of ten aborted", dropped, "M rows/s read"))
    return figures


def encoding(run_count: int) -> list[Figure]:
    """The figures of the encoder."""
    figures = []
    for size, codec, times, wanted in (
        (100, "none", 40, 1.5),
        (1000, "none", 10, None),
        (100, "lz4", 10, None),
        (100, "zstd", 10, None),
    ):
        rows = {
            "key": pa.array([os.urandom(8).hex() for _ in range(ROWS)]),
            "value": pa.array([os.urandom(size) for _ in range(ROWS)]),
        }
        batch = pa.RecordBatch.from_pydict(rows)
        rate = best_rate(ROWS * times, lambda b=batch, c=codec, t=times: encode(b, c, t), run_count)
        figures.append(Figure(f"encode {size} B by key to 4 partitions, {codec}", rate, "M rows/s", wanted))
    return figures


def start_s() -> float:
    """CPU seconds that a worker spends on the decoder up to its first row, where kernels were compiled before."""
    took = [
        float(
            subprocess.run([sys.executable, "-c", START], check=True, capture_output=True, text=True).stdout
        )
        for _ in range(4)
    ]
    return min(took[1:])


def run(run_count: int = RUN_COUNT) -> list[Figure]:
    """All figures, in half a minute."""
    started = Figure("start of the decoder in a worker, to its first row", start_s() * 1000, "ms of CPU")
    return [*decoding(run_count), *encoding(run_count), started]


def show(title: str, figures: list[Figure]) -> None:
    """A table in the terminal."""
    table = Table("", "", "wanted", title=title)
    for figure in figures:
        wanted = "" if figure.wanted is None else f"{figure.wanted:g}"
        table.add_row(figure.what, f"{figure.value:.2f} {figure.unit}", wanted)
    Console().print(table)


if __name__ == "__main__":
    show("Columns, one core", run())
