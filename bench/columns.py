"""How fast do record batches become columns, and columns record batches? Without Spark: the decoder and the encoder.

Rows per second of one core, by CPU time, so that what else the machine does weighs little; the best of some runs.

    python -m bench --only columns
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
from crc32c import crc32c

from bench.contestants import OURS
from bench.earlier_names import either
from bench.report import Section, Wanted
from stablelog.batch import stamping
from stablelog.batch.header import Codec
from stablelog.batch.records import Record, encode_batch
from stablelog.spark.columns.builder import ColumnBuilder
from stablelog.spark.columns.decoder import Decoder
from stablelog.spark.columns.encoder import Encoder

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
from stablelog.spark.columns.builder import ColumnBuilder
from stablelog.spark.columns.decoder import Decoder
builder = ColumnBuilder(["value"])
list(Decoder("t", 0, builder).feed(encode_batch([Record(0, 0, b"k", b"v")]), 0, 1)), next(builder.take_batches())
print(time.process_time() - there)
"""


def log_of(
    value_size: int, codec: Codec = Codec.NONE, aborted_every: int = 0, log_size: int = LOG_SIZE
) -> tuple[bytes, int]:
    """Record batches as a producer writes them, of random values and keys of 16 bytes. Returns them and their rows.

    Args:
        value_size: bytes of each value.
        codec: of the batches.
        aborted_every: of so many transactional batches, one is of producer 666, which aborts; 0 for no transactions.
        log_size: bytes of all batches, at least.
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
    while len(log) < log_size:
        producer = 666 if aborted_every and (offset // count) % aborted_every == 0 else 1
        log += offset.to_bytes(8, "big") + fates[producer][8:]
        offset += count
        rows += count if producer == 1 else 0
    return bytes(log), rows


def arrow_batch(value_size: int) -> pa.RecordBatch:
    """Rows as Spark hands them to a sink at once, with random values and keys of 16 bytes."""
    content = {
        "key": pa.array([os.urandom(8).hex() for _ in range(ROWS)]),
        "value": pa.array([os.urandom(value_size) for _ in range(ROWS)]),
    }
    return pa.RecordBatch.from_pydict(content)


def best_s(work: Callable[[], object], run_count: int) -> float:
    """Seconds of CPU time."""
    best = float("inf")
    for _ in range(run_count):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def least_s(log: bytes, run_count: int) -> float:
    """What nobody can do without: the CRC of every byte, and one copy of it, in pieces that stay in the cache."""
    view, target = memoryview(log), memoryview(bytearray(BATCH_SIZE))

    def work() -> None:
        for start in range(0, len(log) - BATCH_SIZE, BATCH_SIZE):
            piece = view[start : start + BATCH_SIZE]
            crc32c(piece)
            target[:] = piece

    return best_s(work, run_count)


def decode(
    log: bytes, rows: int, columns: tuple[str, ...], aborted: bool = False, check_crc: bool = True
) -> None:
    """Decode a log, as a task does."""
    builder = ColumnBuilder(columns)
    decoder = Decoder("events", 0, builder, check_crc=check_crc)
    listed = [(666, 0)] if aborted else []
    found = sum(batch.num_rows for batch in decoder.feed(log, 0, 1 << 60, listed))
    assert found + sum(batch.num_rows for batch in either(builder, "take_batches", "take")()) == rows


def encode(batch: pa.RecordBatch, codec: str, times: int) -> None:
    """Encode and stamp Arrow batches, as a task does."""
    stamp = either(stamping, "stamp_producer", "stamp")
    encoder = Encoder(codec, lingers=True)
    for _ in range(times):
        for one in encoder.encode(batch, topic="t", partition_counts={"t": 4}):
            stamp(one.batch, 1, 0, 0, transactional=True)
    for one in encoder.flush():
        stamp(one.batch, 1, 0, 0, transactional=True)


def decoding(section: Section, run_count: int) -> None:
    """The figures of the decoder."""

    def note(
        what: str, log: bytes, count: int, work: Callable[[], object], wanted: float | None = None
    ) -> None:
        limit = count / least_s(log, run_count) / 1e6
        aim = None if wanted is None else Wanted(wanted, of_figure=True)
        section.row(f"{what}, M rows/s", wanted=aim, limit=limit).add(
            OURS, count / best_s(work, run_count) / 1e6
        )

    for size, wanted in ((100, 6.0), (1000, 1.5)):
        log, rows = log_of(size)
        for title, columns, checked, goal in (
            ("all columns", ALL, True, wanted),
            ("all columns, CRC not checked", ALL, False, None),
            ("value, partition, offset", ("value", "partition", "offset"), True, None),
            ("timestamp", ("timestamp",), True, None),
            ("offset", ("offset",), True, None),
        ):
            work = partial(decode, log, rows, columns, check_crc=checked)
            note(f"decode {size:,} B, {title}", log, rows, work, goal)
    for codec in Codec:
        if codec:
            log, rows = log_of(100, codec)
            note(
                f"decode 100 B, all columns, {codec.name.lower()}", log, rows, partial(decode, log, rows, ALL)
            )
    log, rows = log_of(100, aborted_every=10)
    read = partial(decode, log, rows, ALL, aborted=True)
    note(
        "decode 100 B, all columns, one batch of ten aborted, of those read", log, round(rows * 10 / 9), read
    )


def encoding(section: Section, run_count: int) -> None:
    """The figures of the encoder."""
    for size, codec, times, wanted in (
        (100, "none", 40, 1.5),
        (1000, "none", 10, None),
        (100, "lz4", 10, None),
        (100, "zstd", 10, None),
    ):
        batch = arrow_batch(size)
        took = best_s(partial(encode, batch, codec, times), run_count)
        section.row(
            f"encode {size:,} B by key to 4 partitions, {codec}, M rows/s",
            wanted=None if wanted is None else Wanted(wanted, of_figure=True),
            limit=ROWS * times / least_s(bytes((size + 16) * ROWS * times), run_count) / 1e6,
        ).add(OURS, ROWS * times / took / 1e6)


def start_s() -> float:
    """CPU seconds that a worker spends on the decoder up to its first row, where kernels were compiled before."""
    took = [
        float(
            subprocess.run([sys.executable, "-c", START], check=True, capture_output=True, text=True).stdout
        )
        for _ in range(4)
    ]
    return min(took[1:])


def run(run_count: int = RUN_COUNT) -> list[Section]:
    """All figures, in half a minute."""
    run_count = max(run_count, 3)  # kernels are loaded in the first
    section = Section("Record batches to columns and back, one core by processor time", beside="")
    decoding(section, run_count)
    encoding(section, run_count)
    section.row("start of the decoder in a worker, to its first row, ms").add(OURS, start_s() * 1000)
    return [section]
