"""What rows look like as records: columns to record batches, as compiled code.

One kernel: it appends each row to the batch of its partition, in buffers that the encoder owns, and stops at a row
that does not fit into its partition's buffer, to go on there once there is room. Addresses and sizes come in arrays of
64-bit integers, whose places have the names below. Arrow's arrays are trusted to be what Arrow defines.

Format: docs/formats.md, "Record".  Source: the default partitioner of Kafka's Java producer (murmur2).
"""

from typing import Any

from stablelog.spark.kernels_cache import Compiler, inlined
from stablelog.spark.kernels_memory import copy_bytes, load_byte, load_native32, store_byte

# The state: where the encoder is and what the rows are.
ROW, ROW_COUNT, NOW, SLOT, NEEDED, IS_STICKY, RECORD_SIZE_MAX = range(7)
TOPICS = 7  # address of a topic's number for each row; 0 if all are of topic 0
PARTITIONS, PARTITIONS_VALIDITY, PARTITIONS_BIT = 8, 9, 10
LISTS, LISTS_VALIDITY, LISTS_BIT = 11, 12, 13  # offsets and validity of the lists of headers
KEY, VALUE, NAME, CONTENT = 14, 18, 22, 26  # columns of bytes; each has the four places below
BYTES_OFFSETS, BYTES_VALIDITY, BYTES_BIT, BYTES_DATA = range(4)
STATE_WIDTH = 30

# The columns of the table of topics.
TOPIC_FIRST_SLOT, TOPIC_PARTITION_COUNT, TOPIC_STICKY = range(3)
TOPIC_WIDTH = 3

# The columns of the table of slots: the batch that each partition is gathering.
SLOT_ADDRESS, SLOT_SIZE, SLOT_CAPACITY, SLOT_COUNT, SLOT_BASE_TIMESTAMP, SLOT_MAX_TIMESTAMP = range(6)
SLOT_WIDTH = 6

DONE, FULL = 0, 1
BAD_PARTITION, BAD_HEADER, TOO_LARGE = -1, -2, -3

HEADER_SIZE = 61
MURMUR_SEED, MURMUR_MIX = 0x9747B28C, 0x5BD1E995
LOW_32 = 0xFFFFFFFF


@inlined
def murmur2(address: int, size: int) -> int:
    """Kafka's hash of a key, 0 to 2^32 - 1."""
    mixed = (MURMUR_SEED ^ size) & LOW_32
    whole = size & ~3
    for at in range(address, address + whole, 4):
        word = load_native32(at) & LOW_32
        word = (word * MURMUR_MIX) & LOW_32
        word ^= word >> 24
        word = (word * MURMUR_MIX) & LOW_32
        mixed = ((mixed * MURMUR_MIX) & LOW_32) ^ word
    rest = size - whole
    if rest >= 3:
        mixed ^= load_byte(address + whole + 2) << 16
    if rest >= 2:
        mixed ^= load_byte(address + whole + 1) << 8
    if rest >= 1:
        mixed ^= load_byte(address + whole)
        mixed = (mixed * MURMUR_MIX) & LOW_32
    mixed ^= mixed >> 13
    mixed = (mixed * MURMUR_MIX) & LOW_32
    return mixed ^ (mixed >> 15)


@inlined
def _varint_size(value: int) -> int:
    folded = (value << 1) ^ (value >> 63)
    size = 1
    while folded > 0x7F or folded < 0:
        folded = (folded >> 7) & 0x1FFFFFFFFFFFFFF
        size += 1
    return size


@inlined
def _put_varint(address: int, value: int) -> int:
    folded = (value << 1) ^ (value >> 63)
    while folded > 0x7F or folded < 0:
        store_byte(address, (folded & 0x7F) | 0x80)
        address += 1
        folded = (folded >> 7) & 0x1FFFFFFFFFFFFFF
    store_byte(address, folded)
    return address + 1


@inlined
def _is_null(validity: int, bit: int) -> bool:
    return validity != 0 and (load_byte(validity + (bit >> 3)) >> (bit & 7)) & 1 == 0


@inlined
def _value_size(state: Any, column: int, row: int) -> int:
    """Bytes of a value; -1 if it is null or there is no such column."""
    offsets = state[column + BYTES_OFFSETS]
    if offsets == 0 or _is_null(state[column + BYTES_VALIDITY], state[column + BYTES_BIT] + row):
        return -1
    return load_native32(offsets + 4 * row + 4) - load_native32(offsets + 4 * row)


@inlined
def _field_size(size: int) -> int:
    return _varint_size(size) + max(size, 0)


@inlined
def _put_field(state: Any, column: int, row: int, size: int, address: int) -> int:
    address = _put_varint(address, size)
    if size > 0:
        source = state[column + BYTES_DATA] + load_native32(state[column + BYTES_OFFSETS] + 4 * row)
        copy_bytes(address, source, size)
        address += size
    return address


@inlined
def _header_range(state: Any, row: int) -> tuple[int, int]:
    """The entries of a row's headers, as [first, end)."""
    if state[LISTS] == 0 or _is_null(state[LISTS_VALIDITY], state[LISTS_BIT] + row):
        return 0, 0
    return load_native32(state[LISTS] + 4 * row), load_native32(state[LISTS] + 4 * row + 4)


@inlined
def _headers_size(state: Any, row: int) -> int:
    """Bytes of a row's headers with their count; BAD_HEADER if one has no name."""
    first, end = _header_range(state, row)
    total = _varint_size(end - first)
    for entry in range(first, end):
        size = _value_size(state, NAME, entry)
        if size < 0:
            return BAD_HEADER
        total += _field_size(size) + _field_size(_value_size(state, CONTENT, entry))
    return total


@inlined
def _put_headers(state: Any, row: int, address: int) -> int:
    first, end = _header_range(state, row)
    address = _put_varint(address, end - first)
    for entry in range(first, end):
        address = _put_field(state, NAME, entry, _value_size(state, NAME, entry), address)
        address = _put_field(state, CONTENT, entry, _value_size(state, CONTENT, entry), address)
    return address


@inlined
def _slot_of(state: Any, topics: Any, row: int) -> int:
    """The slot of the partition that a row goes to; BAD_PARTITION if there is no such partition."""
    number = 0 if state[TOPICS] == 0 else load_native32(state[TOPICS] + 4 * row)
    topic = topics[number]
    first_slot: int = topic[TOPIC_FIRST_SLOT]
    count: int = topic[TOPIC_PARTITION_COUNT]
    state[IS_STICKY] = 0
    if state[PARTITIONS] != 0 and not _is_null(state[PARTITIONS_VALIDITY], state[PARTITIONS_BIT] + row):
        partition = load_native32(state[PARTITIONS] + 4 * row)
        if not 0 <= partition < count:
            return BAD_PARTITION
        return first_slot + partition
    size = _value_size(state, KEY, row)
    if size >= 0:
        source = state[KEY + BYTES_DATA] + load_native32(state[KEY + BYTES_OFFSETS] + 4 * row)
        return first_slot + (murmur2(source, size) & 0x7FFFFFFF) % count
    state[IS_STICKY] = 1
    return first_slot + int(topic[TOPIC_STICKY])


@inlined
def _append(state: Any, slot: Any, row: int) -> int:
    """Append a row to its slot. DONE, FULL, BAD_HEADER or TOO_LARGE; only DONE has changed anything but NEEDED."""
    if slot[SLOT_COUNT] == 0:
        slot[SLOT_BASE_TIMESTAMP] = slot[SLOT_MAX_TIMESTAMP] = state[NOW]
    timestamp_delta, offset_delta = state[NOW] - slot[SLOT_BASE_TIMESTAMP], slot[SLOT_COUNT]
    key_size, value_size = _value_size(state, KEY, row), _value_size(state, VALUE, row)
    headers_size = _headers_size(state, row)
    if headers_size < 0:
        return headers_size
    size = 1 + _varint_size(timestamp_delta) + _varint_size(offset_delta)
    size += _field_size(key_size) + _field_size(value_size) + headers_size
    needed = size + _varint_size(size)
    state[NEEDED] = needed
    if needed > state[RECORD_SIZE_MAX]:
        return TOO_LARGE
    if needed > slot[SLOT_CAPACITY] - slot[SLOT_SIZE]:
        return FULL
    address = _put_varint(slot[SLOT_ADDRESS] + slot[SLOT_SIZE], size)
    store_byte(address, 0)  # attributes: none are defined
    address = _put_varint(address + 1, timestamp_delta)
    address = _put_varint(address, offset_delta)
    address = _put_field(state, KEY, row, key_size, address)
    address = _put_field(state, VALUE, row, value_size, address)
    address = _put_headers(state, row, address)
    slot[SLOT_SIZE] += needed
    slot[SLOT_COUNT] += 1
    slot[SLOT_MAX_TIMESTAMP] = max(slot[SLOT_MAX_TIMESTAMP], state[NOW])
    return DONE


def _encode_rows(state: Any, topics: Any, slots: Any) -> int:
    """Append the rows from ROW on to the batches of their partitions.

    Returns:
        DONE when there are no more. FULL if NEEDED bytes do not fit into slot SLOT, which IS_STICKY if the row may as
        well go to another partition. BAD_PARTITION, BAD_HEADER or TOO_LARGE for what is wrong with the row ROW.
    """
    row, count = state[ROW], state[ROW_COUNT]
    status = DONE
    while row < count:
        number = _slot_of(state, topics, row)
        if number < 0:
            status = number
            break
        status = _append(state, slots[number], row)
        if status != DONE:
            state[SLOT] = number
            break
        row += 1
    state[ROW] = row
    return status


def _hash_key(address: int, size: int) -> int:
    return murmur2(address, size)


with Compiler(__file__) as _compiler:
    encode_rows = _compiler.compile("int64(int64[::1], int64[:, ::1], int64[:, ::1])")(_encode_rows)
    hash_key = _compiler.compile("int64(int64, int64)")(_hash_key)
