"""The kernels (compiled functions) of the decoder, and the indexes of the values in the arrays that they take as
arguments.

`scan_batches` reads batch headers into a table with a row for each batch. `decode_batches` reads the records of these
batches into the buffers of Arrow columns. It stops when the buffers are full, and the next call continues. The caller
passes all addresses and sizes in arrays of 64-bit integers. The source code of the kernels is in
`kernels.decode_source`. This module does not import Numba, whose import would take longer than the rest of a worker's
start.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stablelog.crc32c import crc32c
from stablelog.errors import DamageError
from stablelog.spark.kernels.cache import kernel

SOURCE = "stablelog.spark.kernels.decode_source"

# The columns of the table of batches, which has one row for each batch.
POSITION, SIZE, BASE_OFFSET, ATTRIBUTES, LAST_DELTA, BASE_TIMESTAMP, MAX_TIMESTAMP = range(7)
PRODUCER, RECORD_COUNT, RECORDS, RECORDS_SIZE, CRC = range(7, 12)
TABLE_WIDTH = 12

# The indexes of the values in the array `state` of `scan_batches`.
SCAN_ADDRESS, SCAN_SIZE, SCAN_POSITION, SCAN_COUNT, SCAN_COUNT_MAX = range(5)
SCAN_WIDTH = 5
TABLE_LENGTH = 1024  # Maximum of batch headers that one call of a kernel reads.

# The indexes of the values in the array `state` of `decode_batches`: how far the kernel has decoded, the range of
# offsets and the columns to decode, and how full the columns are.
BATCH_COUNT, BATCH, ADDRESS, RECORD, PREVIOUS_DELTA = range(5)
START, END = 5, 6  # the range of offsets to decode, the end exclusive
ROWS, ROWS_MAX, USED, USED_MAX, NEEDED = range(7, 12)
OFFSETS, TIMESTAMPS, TIMESTAMP_TYPES = range(12, 15)  # addresses of columns; 0 if the column is not read
DEPTH = 15  # the last field of each record that must be read: one of the values DEPTH_... below
HEADER_OFFSETS, HEADER_VALIDITY, HEADER_COUNT, HEADER_NULLS, NAMES_ARE_ASCII = range(16, 21)
KEY, VALUE, NAME, CONTENT = (
    21,
    26,
    31,
    36,
)  # for each column of bytes: the first of its five indexes, to which BYTES_... are added
BYTES_OFFSETS, BYTES_VALIDITY, BYTES_DATA, BYTES_SIZE, BYTES_NULLS = range(5)
STATE_WIDTH = 41
DEPTH_HEADER, DEPTH_TIMES, DEPTH_KEY, DEPTH_VALUE, DEPTH_HEADERS = range(5)

# The status values that a kernel returns.
DONE, FULL, NEEDS_ROOM = 0, 1, 2
BAD_BATCH, BAD_VARINT, BAD_LENGTH, BAD_OFFSET, BAD_HEADERS, BAD_END, BAD_COUNT = range(-1, -8, -1)

HEADER_SIZE, LENGTH_AND_OFFSET_SIZE = 61, 12
OFFSET_MAX = 2**62  # the maximum of a base offset, so that the sum of it and a delta fits into 64 bits
CODEC_MASK, LOG_APPEND_TIME = 0x07, 0x08
MICROSECONDS_MAX, MILLISECONDS_MAX = 2**63 - 1, (2**63 - 1) // 1000


def scan_batches(state: npt.NDArray[np.int64], table: npt.NDArray[np.int64]) -> int:
    """Read the headers of whole batches from byte `state[SCAN_POSITION]` of the data on. The caller sets the values in
    `state`, and this function changes them. Each header becomes a row of `table`.

    Returns:
        DONE at the end of the bytes or of the table: `state[SCAN_COUNT]` is the number of rows, and
        `state[SCAN_POSITION]` is the end of the last batch. BAD_BATCH if the bytes at this position are not a batch
        header.
    """
    assert len(state) == SCAN_WIDTH
    assert table.shape[1] == TABLE_WIDTH
    assert state[SCAN_COUNT_MAX] <= len(table)
    return kernel(SOURCE, "scan_batches")(state, table)


def batch_tables(data: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.int64]]:
    """Read the headers of the whole batches that the bytes begin with. Yield tables with a row for each batch. The next
    table overwrites the one before it.

    Raises:
        DamageError: some bytes are not the header of a batch. The batches before them were yielded.
    """
    table = np.zeros((TABLE_LENGTH, TABLE_WIDTH), np.int64)
    state = np.zeros(SCAN_WIDTH, np.int64)
    state[SCAN_ADDRESS], state[SCAN_SIZE], state[SCAN_COUNT_MAX] = data.ctypes.data, len(data), len(table)
    count = len(table)
    while count == len(table):
        status = scan_batches(state, table)
        count = int(state[SCAN_COUNT])
        if count:
            yield table[:count]
        if status != DONE:
            raise DamageError(
                f"the bytes at position {int(state[SCAN_POSITION])} of a range are not the header of a batch"
            )


def crc_of_headers(data: npt.NDArray[np.uint8], table: npt.NDArray[np.int64], crc: int) -> int:
    """Continue a CRC-32C over the headers of the batches in `table`, whose bytes are in `data`."""
    # A view of the bytes of a header at each position, without a copy.
    headers_at = np.lib.stride_tricks.sliding_window_view(data, HEADER_SIZE)
    return crc32c(headers_at[table[:, POSITION]].tobytes(), crc)


def decode_batches(state: npt.NDArray[np.int64], table: npt.NDArray[np.int64]) -> int:
    """Append the records of the batches in `table` (a row for each batch), from row `state[BATCH]` on, to the columns.
    `state` has the addresses and sizes of the columns, and the position that the decoding has reached.

    Returns:
        DONE when all batches are decoded. FULL when the columns are full. NEEDS_ROOM if one record of `state[NEEDED]`
        bytes does not fit into empty columns. After FULL or NEEDS_ROOM, call again with new buffers. Any other status
        is the error of the batch in row `state[BATCH]`.
    """
    assert len(state) == STATE_WIDTH
    assert table.shape[1] == TABLE_WIDTH
    assert state[BATCH_COUNT] <= len(table)
    return kernel(SOURCE, "decode_batches")(state, table)
