"""Column builder: collects decoded records in the buffers of Arrow columns.

Kernels (compiled functions) fill the buffers. When these are full, the builder emits them as an Arrow batch. The
decoders of several partitions may use one builder in turn, so that many small partitions result in few batches. A
builder holds at most `rows_max` rows and `bytes_max` bytes of keys, values and headers, or one larger record.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stablelog.errors import UsageError
from stablelog.spark.kernels import decode as k

ROWS_MAX = 50_000
BYTES_MAX = 8 << 20
BYTES_LIMIT = 1 << 30  # Maximum bytes of a column: offsets in an Arrow binary column have 32 bits.


HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER_TYPE)),
}


@lru_cache(maxsize=64)
def _constant(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    """Return a constant column: `count` times the same value, such as a topic's name. The column is cached, so that all
    batches of the topic or partition share it.
    """
    return pa.repeat(pa.scalar(value, kind), count)


def _stretch(count: int) -> int:
    """Return the length of the constant column that is cached for `count` rows: the length is stretched to a power of
    2, so that columns of few lengths are cached. A batch uses the first `count` values.
    """
    return 1 << max(count - 1, 1).bit_length()


class ColumnBuilder:
    """The buffers of the Arrow batch that is being filled.

    Args:
        names: the names of the columns, in their order; each is a key of TYPES.
        rows_max: the number of rows of a full batch.
        bytes_max: how many bytes the keys, values and headers of a full batch have together.
        allocate: makes a buffer of a given number of bytes.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        allocate: Callable[[int], pa.Buffer] = pa.allocate_buffer,
    ) -> None:
        assert 0 < rows_max < 1 << 24, rows_max
        self.schema = pa.schema([(name, TYPES[name]) for name in names])
        self.bytes_max = bytes_max
        self.state: npt.NDArray[np.int64] = np.zeros(k.STATE_WIDTH, np.int64)
        self._rows_max = rows_max
        self._allocate = allocate
        self._names = frozenset(names)
        self._buffers: dict[str, pa.Buffer] = {}
        # (topic, partition, first row) of each sequence of rows that come from one partition.
        self._runs: list[tuple[str, int, int]] = []
        self.state[k.DEPTH] = self.depth
        self._clear(bytes_max)

    @property
    def depth(self) -> int:
        """How deep each record has to be decoded: the number of the last field of a record that a column of the read
        needs. The decoder skips the fields after it.
        """
        depths = {
            "headers": k.DEPTH_HEADERS,
            "value": k.DEPTH_VALUE,
            "key": k.DEPTH_KEY,
            "timestamp": k.DEPTH_TIMES,
        }
        return max((depth for name, depth in depths.items() if name in self._names), default=k.DEPTH_HEADER)

    @property
    def row_count(self) -> int:
        """The number of rows in the buffers."""
        return int(self.state[k.ROWS])

    def begin(self, topic: str, partition: int) -> None:
        """Begin the rows of another partition: set the topic and the partition of the rows that are appended from now
        on.
        """
        if not self._runs or self._runs[-1][:2] != (topic, partition):
            self._runs.append((topic, partition, self.row_count))

    def grow(self) -> None:
        """Enlarge the buffers for a record larger than `bytes_max`. The buffers must be empty."""
        assert self.row_count == 0
        self._clear(int(self.state[k.NEEDED]))

    def take_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the buffers, if any, as an Arrow batch. The builder then has new, empty buffers."""
        rows = self.row_count
        if not rows:
            return
        if "timestamp" in self._names:
            self._check_times(rows)
        columns = [self._column(name, rows) for name in self.schema.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        last = self._runs[-1][:2]
        self._runs = [(*last, 0)]
        self._clear(self.bytes_max)
        yield batch

    def _check_times(self, rows: int) -> None:
        """Check that the timestamps of the rows fit into a timestamp of Spark. Where a timestamp does not fit, the
        decoder has written the greatest or the least possible number.
        """
        times = np.frombuffer(self._buffers["timestamp"], np.int64, rows)
        beyond = np.flatnonzero((times == k.MICROSECONDS_MAX) | (times == -k.MICROSECONDS_MAX))
        if len(beyond):
            row = int(beyond[0])
            topic, partition, _ = next(run for run in reversed(self._runs) if run[2] <= row)
            raise UsageError(
                f"a record of {topic}-{partition} has a time outside of the range of Spark's timestamps: read without the "
                "column `timestamp`, for example with a schema that does not name it"
            )

    def _buffer(self, name: str, size: int) -> int:
        self._buffers[name] = self._allocate(size)
        return int(self._buffers[name].address)

    def _offsets_buffer(self, name: str, count: int) -> int:
        """Make the Arrow offsets buffer of a column of `count` values: the buffer that says where each value begins.
        Its first number, 0, is set. Return the address of the buffer.
        """
        address = self._buffer(name, 4 * (count + 1))
        np.frombuffer(self._buffers[name], np.int32, 1)[0] = 0
        return address

    def _clear(self, bytes_max: int) -> None:
        """Clear the columns: make new, empty buffers. They have room for keys, values and headers of together
        `bytes_max` bytes.
        """
        assert 0 < bytes_max <= BYTES_LIMIT, bytes_max
        state, rows = self.state, self._rows_max
        state[k.ROWS] = state[k.USED] = state[k.HEADER_COUNT] = state[k.HEADER_NULLS] = 0
        state[k.ROWS_MAX], state[k.USED_MAX], state[k.NAMES_ARE_ASCII] = rows, bytes_max, 1
        for name, place, size in [
            ("offset", k.OFFSETS, 8),
            ("timestamp", k.TIMESTAMPS, 8),
            ("timestampType", k.TIMESTAMP_TYPES, 4),
        ]:
            if name in self._names:
                state[place] = self._buffer(name, rows * size)
        for name, place in [("key", k.KEY), ("value", k.VALUE)]:
            if name in self._names:
                self._allocate_bytes(name, place, rows, bytes_max)
        if "headers" in self._names:
            state[k.HEADER_OFFSETS] = self._offsets_buffer("headers.offsets", rows)
            state[k.HEADER_VALIDITY] = self._buffer("headers.validity", rows // 8 + 1)
            entries = bytes_max // 2 + 1  # A header takes at least two bytes.
            self._allocate_bytes("name", k.NAME, entries, bytes_max)
            self._allocate_bytes("content", k.CONTENT, entries, bytes_max)

    def _allocate_bytes(self, name: str, place: int, rows: int, bytes_max: int) -> None:
        state = self.state
        state[place + k.BYTES_OFFSETS] = self._offsets_buffer(f"{name}.offsets", rows)
        state[place + k.BYTES_VALIDITY] = self._buffer(f"{name}.validity", rows // 8 + 1)
        state[place + k.BYTES_DATA] = self._buffer(f"{name}.data", bytes_max)
        state[place + k.BYTES_SIZE] = state[place + k.BYTES_NULLS] = 0

    def _column(self, name: str, rows: int) -> pa.Array:
        match name:
            case "key":
                return self._bytes_column(name, k.KEY, rows, TYPES[name])
            case "value":
                return self._bytes_column(name, k.VALUE, rows, TYPES[name])
            case "topic" | "partition":
                return self._constant_column(name, rows)
            case "headers":
                return self._headers_column(rows)
            case _:
                size = TYPES[name].bit_width // 8
                values = self._buffers[name].slice(0, rows * size)
                return pa.Array.from_buffers(TYPES[name], rows, [None, values], null_count=0)

    def _bytes_column(self, name: str, place: int, rows: int, kind: Any) -> pa.Array:
        nulls, size = int(self.state[place + k.BYTES_NULLS]), int(self.state[place + k.BYTES_SIZE])
        validity = self._buffers[f"{name}.validity"].slice(0, (rows + 7) // 8) if nulls else None
        offsets = self._buffers[f"{name}.offsets"].slice(0, 4 * (rows + 1))
        data = self._buffers[f"{name}.data"].slice(0, size)
        return pa.Array.from_buffers(kind, rows, [validity, offsets, data], null_count=nulls)

    def _constant_column(self, name: str, rows: int) -> pa.Array:
        parts = []
        for n, (topic, partition, first) in enumerate(self._runs):
            end = self._runs[n + 1][2] if n + 1 < len(self._runs) else rows
            if end > first:
                value = topic if name == "topic" else partition
                parts.append(_constant(value, TYPES[name], _stretch(end - first)).slice(0, end - first))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _headers_column(self, rows: int) -> pa.Array:
        count, nulls = int(self.state[k.HEADER_COUNT]), int(self.state[k.HEADER_NULLS])
        if self.state[k.NAMES_ARE_ASCII]:
            names = self._bytes_column("name", k.NAME, count, pa.string())
        # If a header name is not UTF-8, replace its invalid bytes by the replacement character, as Kafka's clients do.
        else:
            raw = self._bytes_column("name", k.NAME, count, pa.binary())
            names = pa.array([name.decode(errors="replace") for name in raw.to_pylist()], pa.string())
        contents = self._bytes_column("content", k.CONTENT, count, pa.binary())
        entries = pa.StructArray.from_arrays([names, contents], fields=list(HEADER_TYPE))
        validity = self._buffers["headers.validity"].slice(0, (rows + 7) // 8) if nulls else None
        offsets = self._buffers["headers.offsets"].slice(0, 4 * (rows + 1))
        return pa.Array.from_buffers(
            TYPES["headers"], rows, [validity, offsets], null_count=nulls, children=[entries]
        )
