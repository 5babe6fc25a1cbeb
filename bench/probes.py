"""Work that is measured inside a process of a variant, because no broker takes part in it.

    python -m bench.probes <name> <arguments>

Reads names of rows from its input, one on each line. Does a row's work once for each line, and answers with a line of
JSON: [processor seconds, clock seconds, units of work]. The first line that it writes says where the variant's sources
are. A row's work runs once before it is measured first: that compiles or loads its kernels.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Work = Callable[[], float]  # returns how many units it has done
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def columns(divisor: int) -> Mapping[str, Work]:
    """Decode record batches into Arrow and encode Arrow into record batches. Units: millions of rows."""
    from bench import columns as bench_columns

    def decoding(value_size: int, times: int) -> Work:
        log, rows = bench_columns.log_of(value_size, log_size=bench_columns.LOG_SIZE // divisor)

        def decode() -> float:
            for _ in range(times):
                bench_columns.decode(log, rows, COLUMNS)
            return rows * times / 1e6

        return decode

    batch, times = bench_columns.arrow_batch(100), max(60 // divisor, 1)

    def encode() -> float:
        bench_columns.encode(batch, "none", times)
        return batch.num_rows * times / 1e6

    return {"decode-100": decoding(100, 2), "decode-1k": decoding(1000, 3), "encode": encode}


def scan(directory: str, topics: str, times: int) -> Mapping[str, Work]:
    """Read a stopped broker's directory as Spark's tasks do, through the data source's interface. Units: MB."""
    from stablelog.spark.data_source import StablelogDataSource

    source = StablelogDataSource({"path": directory, "subscribe": topics})
    reader = source.reader(source.schema())

    def read() -> float:
        size = 0
        for _ in range(times):
            for partition in reader.partitions():
                size += sum(batch.nbytes for batch in reader.read(partition))
        assert size, "the directory holds no records"
        return size / 1e6

    return {"file-scan": read}


def fill_aborts(directory: str, segment_count: int, abort_count: int) -> Mapping[str, Work]:
    """Write a partition with so many aborted transactions, for `aborts`."""
    from bench import aborts as bench_aborts

    bench_aborts.fill(Path(directory), segment_count, abort_count)
    return {}


def aborts(directory: str, times: int) -> Mapping[str, Work]:
    """Look up the aborted transactions of fetches all over a partition. Units: thousands of lookups."""
    from bench import aborts as bench_aborts

    partition = bench_aborts.opened(Path(directory))

    def look_up() -> float:
        for _ in range(times):
            bench_aborts.look_up_everywhere(partition)
        return bench_aborts.PLACE_COUNT * times / 1000

    return {"aborts": look_up}


PROBES: Mapping[str, Callable[..., Mapping[str, Work]]] = {
    "columns": lambda divisor: columns(int(divisor)),
    "scan": lambda path, topics, times: scan(path, topics, int(times)),
    "fill-aborts": lambda path, segments, count: fill_aborts(path, int(segments), int(count)),
    "aborts": lambda path, times: aborts(path, int(times)),
}


def main() -> None:
    """Do the work that the command line and the input name."""
    import stablelog

    name, *arguments = sys.argv[1:]
    works = PROBES[name](*arguments)
    print(json.dumps({"source": stablelog.__file__}), flush=True)
    warm = set()
    for line in sys.stdin:
        row = line.strip()
        if row not in warm:
            works[row]()
            warm.add(row)
        began, began_processor = time.perf_counter(), time.process_time()
        units = works[row]()
        print(
            json.dumps([time.process_time() - began_processor, time.perf_counter() - began, units]),
            flush=True,
        )


if __name__ == "__main__":
    main()
