"""What the records of a batch say: record batches to columns, as compiled code.

Two kernels. `scan_batches` reads headers into a table of a row per batch; `decode_batches` reads the records of the
batches in such a table into the buffers of Arrow columns, and stops when the buffers are full, to go on where it was.
Both get every address and every size in arrays of 64-bit integers, whose places have the names below.

Whatever the bytes are, nothing is read outside of the batch and nothing written outside of the buffers. A kernel
raises nothing: it returns a status, and the decoder makes the error of it.

Format: docs/formats.md, "Record batch" and "Record".
"""

from typing import Any

from stablelog.spark.kernels_cache import Compiler, inlined
from stablelog.spark.kernels_memory import (
    copy_bytes,
    load_byte,
    load_int16,
    load_int32,
    load_int64,
    store_byte,
    store_native32,
    store_native64,
)

# The columns of the table of batches.
POSITION, SIZE, BASE_OFFSET, ATTRIBUTES, LAST_DELTA, BASE_TIMESTAMP, MAX_TIMESTAMP = range(7)
PRODUCER, RECORD_COUNT, RECORDS, RECORDS_SIZE, CRC, MARKER = range(7, 13)
TABLE_WIDTH = 13
MARKER_NONE, MARKER_COMPRESSED = -1, -2  # no marker of a transaction; one that has to be unpacked first

# The state of a scan.
SCAN_ADDRESS, SCAN_SIZE, SCAN_POSITION, SCAN_COUNT, SCAN_COUNT_MAX = range(5)
SCAN_WIDTH = 5

# The state of the decoder: where it is, what is asked for, and what it has filled.
BATCH_COUNT, BATCH, ADDRESS, RECORD, PREVIOUS_DELTA = range(5)
START, END = 5, 6  # offsets of the records that are wanted
ROWS, ROWS_MAX, USED, USED_MAX, NEEDED = range(7, 12)
OFFSETS, TIMESTAMPS, TIMESTAMP_TYPES = range(12, 15)  # addresses, 0 if the column is not wanted
DEPTH = 15  # how far into each record one must read
HEADER_OFFSETS, HEADER_VALIDITY, HEADER_COUNT, HEADER_NULLS, NAMES_ARE_ASCII = range(16, 21)
KEY, VALUE, NAME, CONTENT = 21, 26, 31, 36  # columns of bytes; each has the five places below
BYTES_OFFSETS, BYTES_VALIDITY, BYTES_DATA, BYTES_SIZE, BYTES_NULLS = range(5)
STATE_WIDTH = 41
DEPTH_HEADER, DEPTH_TIMES, DEPTH_KEY, DEPTH_VALUE, DEPTH_HEADERS = range(5)

# What a kernel returns.
DONE, FULL, NEEDS_ROOM = 0, 1, 2
BAD_BATCH, BAD_VARINT, BAD_LENGTH, BAD_OFFSET, BAD_HEADERS, BAD_END, BAD_COUNT = range(-1, -8, -1)

HEADER_SIZE, LENGTH_AND_OFFSET_SIZE = 61, 12
OFFSET_MAX = 2**62  # so that no sum of an offset and a delta leaves 64 bits
CODEC_MASK, LOG_APPEND_TIME, CONTROL = 0x07, 0x08, 0x20
MICROSECONDS_MAX, MILLISECONDS_MAX = 2**63 - 1, (2**63 - 1) // 1000


@inlined
def _long_varint(address: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while address < end and shift < 64:
        byte = load_byte(address)
        address += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Unsigned in Kafka's zig-zag: the top bit, once shifted down, is no sign.
            return ((result >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(result & 1), address
        shift += 7
    return 0, BAD_VARINT


@inlined
def read_varint(address: int, end: int) -> tuple[int, int]:
    """The zig-zag varint at an address and where the next thing begins; BAD_VARINT in its place if it does not end."""
    if address < end:
        byte = load_byte(address)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), address + 1
        if address + 1 < end:
            high = load_byte(address + 1)
            if high < 0x80:
                both = (byte & 0x7F) | (high << 7)
                return (both >> 1) ^ -(both & 1), address + 2
    return _long_varint(address, end)


@inlined
def _marker_type(records: int, end: int, attributes: int) -> int:
    """What the control batch whose records begin there says: 0 abort, 1 commit."""
    if attributes & CODEC_MASK:
        return MARKER_COMPRESSED
    address = records
    for part in range(5):  # length, attributes, timestamp, offset, key size
        if part == 1:
            address += 1
            continue
        size, address = read_varint(address, end)
        if address < 0:
            return MARKER_NONE
        if part == 4 and size >= 4 and end - address >= 4:
            return load_int16(address + 2)  # behind the version
    return MARKER_NONE


def _scan_batches(state: Any, table: Any) -> int:
    """Read the headers of whole batches from SCAN_POSITION on, into at most SCAN_COUNT_MAX rows of the table.

    Returns:
        DONE, with SCAN_POSITION behind the last of them and SCAN_COUNT rows filled; BAD_BATCH if what stands at
        SCAN_POSITION is no header.
    """
    origin, size, position = state[SCAN_ADDRESS], state[SCAN_SIZE], state[SCAN_POSITION]
    count = 0
    status = DONE
    while count < state[SCAN_COUNT_MAX] and size - position >= HEADER_SIZE:
        at = origin + position
        length = load_int32(at + 8)
        if load_byte(at + 16) != 2 or length < HEADER_SIZE - LENGTH_AND_OFFSET_SIZE:
            status = BAD_BATCH
            break
        last_delta, record_count = load_int32(at + 23), load_int32(at + 57)
        if last_delta < 0 or record_count < 0 or not 0 <= load_int64(at) <= OFFSET_MAX:
            status = BAD_BATCH
            break
        batch_size = length + LENGTH_AND_OFFSET_SIZE
        if batch_size > size - position:
            break  # cut off: whoever reads on from here gets it whole
        row = table[count]
        row[POSITION] = position
        row[SIZE] = batch_size
        row[BASE_OFFSET] = load_int64(at)
        row[CRC] = load_int32(at + 17) & 0xFFFFFFFF
        attributes = load_int16(at + 21)
        row[ATTRIBUTES] = attributes
        row[LAST_DELTA] = last_delta
        row[BASE_TIMESTAMP] = load_int64(at + 27)
        row[MAX_TIMESTAMP] = load_int64(at + 35)
        row[PRODUCER] = load_int64(at + 43)
        row[RECORD_COUNT] = record_count
        row[RECORDS] = at + HEADER_SIZE
        row[RECORDS_SIZE] = batch_size - HEADER_SIZE
        row[MARKER] = MARKER_NONE
        if attributes & CONTROL and record_count > 0:
            row[MARKER] = _marker_type(at + HEADER_SIZE, at + batch_size, attributes)
        position += batch_size
        count += 1
    state[SCAN_POSITION] = position
    state[SCAN_COUNT] = count
    return status


@inlined
def _microseconds(milliseconds: int) -> int:
    if milliseconds > MILLISECONDS_MAX:
        return MICROSECONDS_MAX
    if milliseconds < -MILLISECONDS_MAX:
        return -MICROSECONDS_MAX
    return milliseconds * 1000


@inlined
def _put_bytes(state: Any, column: int, row: int, source: int, size: int) -> None:
    """Append a value to a column of bytes; null if its size is negative. There is room, and the source is whole."""
    validity = state[column + BYTES_VALIDITY] + (row >> 3)
    if row & 7 == 0:
        store_byte(validity, 0xFF)
    filled = state[column + BYTES_SIZE]
    if size < 0:
        store_byte(validity, load_byte(validity) & ~(1 << (row & 7)))
        state[column + BYTES_NULLS] += 1
    elif size > 0:
        copy_bytes(state[column + BYTES_DATA] + filled, source, size)
        filled += size
        state[column + BYTES_SIZE] = filled
    store_native32(state[column + BYTES_OFFSETS] + 4 * (row + 1), filled)


@inlined
def _put_header(state: Any, address: int, end: int) -> int:
    """Append one header of a record. Returns where the next begins, or what is wrong."""
    entry = state[HEADER_COUNT]
    size, address = read_varint(address, end)
    if address < 0:
        return address
    if size < 0:
        return BAD_HEADERS
    if size > end - address:
        return BAD_LENGTH
    for at in range(address, address + size):
        if load_byte(at) >= 0x80:
            state[NAMES_ARE_ASCII] = 0
    _put_bytes(state, NAME, entry, address, size)
    address += size
    state[USED] += size + 2
    size, address = read_varint(address, end)
    if address < 0:
        return address
    if size > end - address:
        return BAD_LENGTH
    _put_bytes(state, CONTENT, entry, address, size)
    state[HEADER_COUNT] = entry + 1
    if size > 0:
        state[USED] += size
        address += size
    return address


@inlined
def _put_headers(state: Any, row: int, address: int, end: int) -> int:
    """Append the headers of a record, which are all that is left of it. Returns where they end, or what is wrong."""
    count, address = read_varint(address, end)
    if address < 0:
        return address
    if count < 0 or count > end - address:
        return BAD_HEADERS
    validity = state[HEADER_VALIDITY] + (row >> 3)
    if row & 7 == 0:
        store_byte(validity, 0xFF)
    if count == 0:  # as Spark's connector has it: a record without headers has null, not an empty list
        store_byte(validity, load_byte(validity) & ~(1 << (row & 7)))
        state[HEADER_NULLS] += 1
    for _ in range(count):
        address = _put_header(state, address, end)
        if address < 0:
            return address
    store_native32(state[HEADER_OFFSETS] + 4 * (row + 1), state[HEADER_COUNT])
    if address != end:
        return BAD_END
    return address


@inlined
def _put_field(state: Any, column: int, row: int, address: int, end: int) -> int:
    """Append a key or a value, or pass over it. Returns what is behind it, or what is wrong."""
    size, address = read_varint(address, end)
    if address < 0:
        return address
    if size > end - address:
        return BAD_LENGTH
    if state[column + BYTES_OFFSETS] != 0:
        _put_bytes(state, column, row, address, size)
        if size > 0:
            state[USED] += size
    if size > 0:
        address += size
    return address


@inlined
def _put_record(state: Any, row: int, address: int, end: int) -> int:
    """Append the key, value and headers of a record, as far as they are asked for. Negative if they are not right."""
    depth = state[DEPTH]
    if depth >= DEPTH_KEY:
        address = _put_field(state, KEY, row, address, end)
        if address >= 0 and depth >= DEPTH_VALUE:
            address = _put_field(state, VALUE, row, address, end)
            if address >= 0 and depth >= DEPTH_HEADERS:
                address = _put_headers(state, row, address, end)
    return address


@inlined
def _put_times(state: Any, batch: Any, row: int, offset: int, timestamp_delta: int) -> None:
    if state[OFFSETS] != 0:
        store_native64(state[OFFSETS] + 8 * row, offset)
    by_log = (batch[ATTRIBUTES] & LOG_APPEND_TIME) >> 3
    if state[TIMESTAMPS] != 0:
        timestamp = batch[MAX_TIMESTAMP] if by_log else batch[BASE_TIMESTAMP] + timestamp_delta
        store_native64(state[TIMESTAMPS] + 8 * row, _microseconds(timestamp))
    if state[TIMESTAMP_TYPES] != 0:
        store_native32(state[TIMESTAMP_TYPES] + 4 * row, by_log)


@inlined
def _decode_dense(state: Any, batch: Any) -> int:
    """The rows of a batch whose offsets have no gaps, when nothing is wanted that stands in its records."""
    first, row = batch[BASE_OFFSET] + state[RECORD], state[ROWS]
    first = max(first, state[START])
    last = batch[BASE_OFFSET] + batch[LAST_DELTA]
    end = min(last + 1, state[END], first + state[ROWS_MAX] - row)
    for offset in range(first, end):
        _put_times(state, batch, row, offset, 0)
        row += 1
    state[ROWS] = row
    if end <= last and end < state[END]:
        state[RECORD] = max(end - batch[BASE_OFFSET], state[RECORD])
        return FULL
    return DONE


@inlined
def _decode_records(state: Any, batch: Any) -> int:
    """The records of a batch from where the state is in it, until they or the room end."""
    address, end = state[ADDRESS], batch[RECORDS] + batch[RECORDS_SIZE]
    delta, row = state[PREVIOUS_DELTA], state[ROWS]
    base_offset, start, stop = batch[BASE_OFFSET], state[START], state[END]
    status = DONE
    record = state[RECORD]
    while record < batch[RECORD_COUNT]:
        length, at = read_varint(address, end)
        if at < 0 or length <= 0 or length > end - at:
            status = BAD_LENGTH if at >= 0 else at
            break
        record_end = at + length
        timestamp_delta, at = read_varint(
            at + 1, record_end
        )  # behind the attributes, of which there are none
        if at < 0:
            status = at
            break
        before = delta
        delta, at = read_varint(at, record_end)
        if at < 0 or delta <= before or delta > batch[LAST_DELTA]:
            status = BAD_OFFSET if at >= 0 else at
            break
        offset = base_offset + delta
        if offset >= stop:
            record = batch[RECORD_COUNT]
            address = end
            break
        if offset >= start:
            if row >= state[ROWS_MAX] or state[USED] + length > state[USED_MAX]:
                delta = before
                state[NEEDED] = length
                status = FULL if row > 0 else NEEDS_ROOM
                break
            at = _put_record(state, row, at, record_end)
            if at < 0:
                status = at
                break
            _put_times(state, batch, row, offset, timestamp_delta)
            row += 1
        address = record_end
        record += 1
    state[ADDRESS], state[PREVIOUS_DELTA], state[RECORD], state[ROWS] = address, delta, record, row
    if status == DONE and address != end:
        return BAD_END
    return status


def _decode_batches(state: Any, table: Any) -> int:
    """Append the records of the batches in the table, from row BATCH on, to the columns.

    Returns:
        DONE when all are read; FULL when the columns are, NEEDS_ROOM if a single record of NEEDED bytes does not fit
        into empty ones: called again with fresh buffers it goes on. What is wrong otherwise, in the batch of row BATCH.
    """
    while state[BATCH] < state[BATCH_COUNT]:
        batch = table[state[BATCH]]
        if state[ADDRESS] == 0:
            state[ADDRESS] = batch[RECORDS]
            state[RECORD] = 0
            state[PREVIOUS_DELTA] = -1
        is_dense = state[DEPTH] == DEPTH_HEADER and batch[RECORD_COUNT] == batch[LAST_DELTA] + 1
        if batch[RECORD_COUNT] > batch[RECORDS_SIZE] and not (is_dense and batch[ATTRIBUTES] & CODEC_MASK):
            return BAD_COUNT
        if is_dense:
            status = _decode_dense(state, batch)
        else:
            status = _decode_records(state, batch)
        if status != DONE:
            return status
        state[ADDRESS] = 0
        state[BATCH] += 1
    return DONE


with Compiler(__file__) as _compiler:
    scan_batches = _compiler.compile("int64(int64[::1], int64[:, ::1])")(_scan_batches)
    decode_batches = _compiler.compile("int64(int64[::1], int64[:, ::1])")(_decode_batches)
