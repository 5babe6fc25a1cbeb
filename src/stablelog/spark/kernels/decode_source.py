"""Source of the decoder's kernels, the compiled functions that convert record batches into columns. `kernels.decode`
has their interface.

For any input bytes, a kernel reads nothing outside of the batch and writes nothing outside of the buffers. A kernel
raises no exception: it returns a status, from which the decoder makes the error.

Format: docs/reference/formats.md, "Record batch" and "Record".
"""

from typing import Any

from stablelog.spark.kernels import decode as k
from stablelog.spark.kernels.build import inlined
from stablelog.spark.kernels.memory import (
    copy_bytes,
    entry_at,
    load_byte,
    load_int16,
    load_int32,
    load_int64,
    store_byte,
    store_native32,
    store_native64,
)


@inlined
def _long_varint(address: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while address < end and shift < 64:
        byte = load_byte(address)
        address += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Mask for the unsigned right shift in zig-zag decoding: it clears the sign bit, which the shift repeats.
            return ((result >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(result & 1), address
        shift += 7
    return 0, k.BAD_VARINT


@inlined
def read_varint(address: int, end: int) -> tuple[int, int]:
    """Return a pair: the zig-zag varint at an address, and the address after it. If the varint does not end before the
    address `end`, the second value is BAD_VARINT.
    """
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


def _scan_batches(state: Any, table: Any) -> int:
    """Read the headers of whole batches from byte `state[SCAN_POSITION]` of the data on. The caller sets the values in
    `state`, and this function changes them. Each header becomes a row of `table`.

    Returns:
        DONE at the end of the bytes or of the table: `state[SCAN_COUNT]` is the number of rows, and
        `state[SCAN_POSITION]` is the end of the last batch. BAD_BATCH if the bytes at this position are not a batch
        header.
    """
    origin, size, position = state[k.SCAN_ADDRESS], state[k.SCAN_SIZE], state[k.SCAN_POSITION]
    count = 0
    status = k.DONE
    while count < state[k.SCAN_COUNT_MAX] and size - position >= k.HEADER_SIZE:
        at = origin + position
        length = load_int32(at + 8)
        if load_byte(at + 16) != 2 or length < k.HEADER_SIZE - k.LENGTH_AND_OFFSET_SIZE:
            status = k.BAD_BATCH
            break
        last_delta, record_count = load_int32(at + 23), load_int32(at + 57)
        if last_delta < 0 or record_count < 0 or not 0 <= load_int64(at) <= k.OFFSET_MAX:
            status = k.BAD_BATCH
            break
        batch_size = length + k.LENGTH_AND_OFFSET_SIZE
        if batch_size > size - position:
            break  # The batch is incomplete. The caller's next read returns it whole.
        row = entry_at(table, count * k.TABLE_WIDTH)
        row[k.POSITION] = position
        row[k.SIZE] = batch_size
        row[k.BASE_OFFSET] = load_int64(at)
        row[k.CRC] = load_int32(at + 17) & 0xFFFFFFFF
        row[k.ATTRIBUTES] = load_int16(at + 21)
        row[k.LAST_DELTA] = last_delta
        row[k.BASE_TIMESTAMP] = load_int64(at + 27)
        row[k.MAX_TIMESTAMP] = load_int64(at + 35)
        row[k.PRODUCER] = load_int64(at + 43)
        row[k.RECORD_COUNT] = record_count
        row[k.RECORDS] = at + k.HEADER_SIZE
        row[k.RECORDS_SIZE] = batch_size - k.HEADER_SIZE
        position += batch_size
        count += 1
    state[k.SCAN_POSITION] = position
    state[k.SCAN_COUNT] = count
    return status


@inlined
def _microseconds(milliseconds: int) -> int:
    if milliseconds > k.MILLISECONDS_MAX:
        return k.MICROSECONDS_MAX
    if milliseconds < -k.MILLISECONDS_MAX:
        return -k.MICROSECONDS_MAX
    return milliseconds * 1000


@inlined
def _put_bytes(state: Any, column: int, row: int, source: int, size: int) -> None:
    """Append a value to a column: the `size` bytes at the address `source`, or null if `size` is negative. The caller
    has checked that the value fits. `state` is the array with the addresses and sizes of the columns.
    """
    validity = state[column + k.BYTES_VALIDITY] + (row >> 3)
    if row & 7 == 0:
        store_byte(validity, 0xFF)
    filled = state[column + k.BYTES_SIZE]
    if size < 0:
        store_byte(validity, load_byte(validity) & ~(1 << (row & 7)))
        state[column + k.BYTES_NULLS] += 1
    elif size > 0:
        copy_bytes(state[column + k.BYTES_DATA] + filled, source, size)
        filled += size
        state[column + k.BYTES_SIZE] = filled
    store_native32(state[column + k.BYTES_OFFSETS] + 4 * (row + 1), filled)


@inlined
def _put_header(state: Any, address: int, end: int) -> int:
    """Append one header of a record, which begins at `address` and may reach to `end`, to the column `headers`. Return
    the address of the next header, or an error status. `state` is the array with the addresses and sizes of the
    columns.
    """
    entry = state[k.HEADER_COUNT]
    size, address = read_varint(address, end)
    if address < 0:
        return address
    if size < 0:
        return k.BAD_HEADERS
    if size > end - address:
        return k.BAD_LENGTH
    for at in range(address, address + size):
        if load_byte(at) >= 0x80:
            state[k.NAMES_ARE_ASCII] = 0
    _put_bytes(state, k.NAME, entry, address, size)
    address += size
    state[k.USED] += size + 2
    size, address = read_varint(address, end)
    if address < 0:
        return address
    if size > end - address:
        return k.BAD_LENGTH
    _put_bytes(state, k.CONTENT, entry, address, size)
    state[k.HEADER_COUNT] = entry + 1
    if size > 0:
        state[k.USED] += size
        address += size
    return address


@inlined
def _put_headers(state: Any, row: int, address: int, end: int) -> int:
    """Append the headers of a record, its last field, to row `row` of the column `headers`. They begin at `address`,
    and the record ends at `end`. Return the address of their end, or an error status. `state` is the array with the
    addresses and sizes of the columns.
    """
    count, address = read_varint(address, end)
    if address < 0:
        return address
    if count < 0 or count > end - address:
        return k.BAD_HEADERS
    validity = state[k.HEADER_VALIDITY] + (row >> 3)
    if row & 7 == 0:
        store_byte(validity, 0xFF)
    if count == 0:  # as in Spark's Kafka connector, a record without headers has null, not an empty list
        store_byte(validity, load_byte(validity) & ~(1 << (row & 7)))
        state[k.HEADER_NULLS] += 1
    for _ in range(count):
        address = _put_header(state, address, end)
        if address < 0:
            return address
    store_native32(state[k.HEADER_OFFSETS] + 4 * (row + 1), state[k.HEADER_COUNT])
    if address != end:
        return k.BAD_END
    return address


@inlined
def _put_field(state: Any, column: int, row: int, address: int, end: int) -> int:
    """Append the key or the value of a record to row `row` of its column, or skip the field if the read does not need
    that column. The field begins at `address`, and the record ends at `end`. Return the address after the field, or an
    error status. `state` is the array with the addresses and sizes of the columns.
    """
    size, address = read_varint(address, end)
    if address < 0:
        return address
    if size > end - address:
        return k.BAD_LENGTH
    if state[column + k.BYTES_OFFSETS] != 0:
        _put_bytes(state, column, row, address, size)
        if size > 0:
            state[k.USED] += size
    if size > 0:
        address += size
    return address


@inlined
def _put_record(state: Any, row: int, address: int, end: int) -> int:
    """Append the key, value and headers of a record to row `row` of the columns that are read. They begin at `address`,
    and the record ends at `end`. Return a negative error status if a field is damaged or does not fit. `state` is the
    array with the addresses and sizes of the columns.
    """
    depth = state[k.DEPTH]
    if depth >= k.DEPTH_KEY:
        address = _put_field(state, k.KEY, row, address, end)
        if address >= 0 and depth >= k.DEPTH_VALUE:
            address = _put_field(state, k.VALUE, row, address, end)
            if address >= 0 and depth >= k.DEPTH_HEADERS:
                address = _put_headers(state, row, address, end)
    return address


@inlined
def _put_times(state: Any, batch: Any, row: int, offset: int, timestamp_delta: int) -> None:
    if state[k.OFFSETS] != 0:
        store_native64(state[k.OFFSETS] + 8 * row, offset)
    by_log = (batch[k.ATTRIBUTES] & k.LOG_APPEND_TIME) >> 3
    if state[k.TIMESTAMPS] != 0:
        timestamp = batch[k.MAX_TIMESTAMP] if by_log else batch[k.BASE_TIMESTAMP] + timestamp_delta
        store_native64(state[k.TIMESTAMPS] + 8 * row, _microseconds(timestamp))
    if state[k.TIMESTAMP_TYPES] != 0:
        store_native32(state[k.TIMESTAMP_TYPES] + 4 * row, by_log)


@inlined
def _decode_dense(state: Any, batch: Any) -> int:
    """Append the rows of a dense batch, one whose offsets have no gaps, from its header alone, without decoding
    records. The caller has checked that the columns of the read need no field of the records. Return the status, as
    `decode_batches` does.
    """
    first, row = batch[k.BASE_OFFSET] + state[k.RECORD], state[k.ROWS]
    first = max(first, state[k.START])
    last = batch[k.BASE_OFFSET] + batch[k.LAST_DELTA]
    end = min(last + 1, state[k.END], first + state[k.ROWS_MAX] - row)
    for offset in range(first, end):
        _put_times(state, batch, row, offset, 0)
        row += 1
    state[k.ROWS] = row
    if end <= last and end < state[k.END]:
        state[k.RECORD] = max(end - batch[k.BASE_OFFSET], state[k.RECORD])
        return k.FULL
    return k.DONE


@inlined
def _decode_records(state: Any, batch: Any) -> int:
    """Append the records of a batch to the columns, from the position in `state` on, until the batch ends or the
    columns are full. Return the status, as `decode_batches` does.
    """
    address, end = state[k.ADDRESS], batch[k.RECORDS] + batch[k.RECORDS_SIZE]
    delta, row = state[k.PREVIOUS_DELTA], state[k.ROWS]
    base_offset, start, stop = batch[k.BASE_OFFSET], state[k.START], state[k.END]
    status = k.DONE
    record = state[k.RECORD]
    while record < batch[k.RECORD_COUNT]:
        length, at = read_varint(address, end)
        if at < 0 or length <= 0 or length > end - at:
            status = k.BAD_LENGTH if at >= 0 else at
            break
        record_end = at + length
        # Skip the record's attributes byte, which Kafka does not use.
        timestamp_delta, at = read_varint(at + 1, record_end)
        if at < 0:
            status = at
            break
        before = delta
        delta, at = read_varint(at, record_end)
        if at < 0 or delta <= before or delta > batch[k.LAST_DELTA]:
            status = k.BAD_OFFSET if at >= 0 else at
            break
        offset = base_offset + delta
        if offset >= stop:
            record = batch[k.RECORD_COUNT]
            address = end
            break
        if offset >= start:
            if row >= state[k.ROWS_MAX] or state[k.USED] + length > state[k.USED_MAX]:
                delta = before
                state[k.NEEDED] = length
                status = k.FULL if row > 0 else k.NEEDS_ROOM
                break
            at = _put_record(state, row, at, record_end)
            if at < 0:
                status = at
                break
            _put_times(state, batch, row, offset, timestamp_delta)
            row += 1
        address = record_end
        record += 1
    state[k.ADDRESS], state[k.PREVIOUS_DELTA], state[k.RECORD], state[k.ROWS] = address, delta, record, row
    if status == k.DONE and address != end:
        return k.BAD_END
    return status


def _decode_batches(state: Any, table: Any) -> int:
    """Append the records of the batches in `table` (a row for each batch), from row `state[BATCH]` on, to the columns.
    `state` has the addresses and sizes of the columns, and the position that the decoding has reached.

    Returns:
        DONE when all batches are decoded. FULL when the columns are full. NEEDS_ROOM if one record of `state[NEEDED]`
        bytes does not fit into empty columns. After FULL or NEEDS_ROOM, call again with new buffers. Any other status
        is the error of the batch in row `state[BATCH]`.
    """
    while state[k.BATCH] < state[k.BATCH_COUNT]:
        batch = entry_at(table, state[k.BATCH] * k.TABLE_WIDTH)
        if state[k.ADDRESS] == 0:
            state[k.ADDRESS] = batch[k.RECORDS]
            state[k.RECORD] = 0
            state[k.PREVIOUS_DELTA] = -1
        is_dense = state[k.DEPTH] == k.DEPTH_HEADER and batch[k.RECORD_COUNT] == batch[k.LAST_DELTA] + 1
        if batch[k.RECORD_COUNT] > batch[k.RECORDS_SIZE] and not (
            is_dense and batch[k.ATTRIBUTES] & k.CODEC_MASK
        ):
            return k.BAD_COUNT
        if is_dense:
            status = _decode_dense(state, batch)
        else:
            status = _decode_records(state, batch)
        if status != k.DONE:
            return status
        state[k.ADDRESS] = 0
        state[k.BATCH] += 1
    return k.DONE


KERNELS = {"scan_batches": (_scan_batches, 2), "decode_batches": (_decode_batches, 2)}
