"""Source of the encoder's kernels, the compiled functions that convert columns into record batches. `kernels.encode`
has their interface.

The kernels do not check that Arrow's arrays are valid. They check the partition numbers of the rows.

Format: docs/reference/formats.md, "Record".  Source: the default partitioner of Kafka's Java producer (murmur2).
"""

from typing import Any

from stablelog.spark.kernels import encode as k
from stablelog.spark.kernels.build import inlined
from stablelog.spark.kernels.memory import copy_bytes, entry_at, load_byte, load_native32, store_byte


@inlined
def murmur2(address: int, size: int) -> int:
    """Return Kafka's hash (murmur2) of a key, 0 to 2^32 - 1."""
    mixed = (k.MURMUR_SEED ^ size) & k.LOW_32
    whole = size & ~3
    for at in range(address, address + whole, 4):
        word = load_native32(at) & k.LOW_32
        word = (word * k.MURMUR_MIX) & k.LOW_32
        word ^= word >> 24
        word = (word * k.MURMUR_MIX) & k.LOW_32
        mixed = ((mixed * k.MURMUR_MIX) & k.LOW_32) ^ word
    rest = size - whole
    if rest >= 3:
        mixed ^= load_byte(address + whole + 2) << 16
    if rest >= 2:
        mixed ^= load_byte(address + whole + 1) << 8
    if rest >= 1:
        mixed ^= load_byte(address + whole)
        mixed = (mixed * k.MURMUR_MIX) & k.LOW_32
    mixed ^= mixed >> 13
    mixed = (mixed * k.MURMUR_MIX) & k.LOW_32
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
def _is_null(state: Any, column: int, row: int) -> bool:
    """Return whether a column is null in a row, or does not exist. `state` is the array with the addresses of the
    columns.
    """
    if state[column + k.NUMBERS] == 0:
        return True
    validity: int = state[column + k.VALIDITY]
    bit: int = state[column + k.BIT] + row
    return validity != 0 and (load_byte(validity + (bit >> 3)) >> (bit & 7)) & 1 == 0


@inlined
def _value_size(state: Any, column: int, row: int) -> int:
    """Return the size in bytes of the value that a column has in a row; -1 if the value is null or the column does not
    exist. `state` is the array with the addresses of the columns.
    """
    if _is_null(state, column, row):
        return -1
    offsets = state[column + k.NUMBERS]
    return load_native32(offsets + 4 * row + 4) - load_native32(offsets + 4 * row)


@inlined
def _field_size(size: int) -> int:
    return _varint_size(size) + max(size, 0)


@inlined
def _put_field(state: Any, column: int, row: int, size: int, address: int) -> int:
    address = _put_varint(address, size)
    if size > 0:
        source = state[column + k.DATA] + load_native32(state[column + k.NUMBERS] + 4 * row)
        copy_bytes(address, source, size)
        address += size
    return address


@inlined
def _header_range(state: Any, row: int) -> tuple[int, int]:
    """Return a pair: the index of a row's first header in the array of all rows' headers, and the index after its last
    one.
    """
    if _is_null(state, k.LISTS, row):
        return 0, 0
    return load_native32(state[k.LISTS] + 4 * row), load_native32(state[k.LISTS] + 4 * row + 4)


@inlined
def _headers_size(state: Any, row: int) -> int:
    """Return the size in bytes of a row's headers in a record, with the field for their number; BAD_HEADER if a header
    has no name.
    """
    first, end = _header_range(state, row)
    total = _varint_size(end - first)
    for entry in range(first, end):
        size = _value_size(state, k.NAME, entry)
        if size < 0:
            return k.BAD_HEADER
        total += _field_size(size) + _field_size(_value_size(state, k.CONTENT, entry))
    return total


@inlined
def _put_headers(state: Any, row: int, address: int) -> int:
    first, end = _header_range(state, row)
    address = _put_varint(address, end - first)
    for entry in range(first, end):
        address = _put_field(state, k.NAME, entry, _value_size(state, k.NAME, entry), address)
        address = _put_field(state, k.CONTENT, entry, _value_size(state, k.CONTENT, entry), address)
    return address


@inlined
def _slot_of(state: Any, topics: Any, row: int) -> int:
    """Return the slot (the batch buffer) of a row's partition; BAD_PARTITION if the topic has no such partition."""
    number = 0 if state[k.TOPICS] == 0 else load_native32(state[k.TOPICS] + 4 * row)
    topic = entry_at(topics, number * k.TOPIC_WIDTH)
    first_slot: int = topic[k.TOPIC_FIRST_SLOT]
    count: int = topic[k.TOPIC_PARTITION_COUNT]
    state[k.IS_STICKY] = 0
    if not _is_null(state, k.PARTITIONS, row):
        partition = load_native32(state[k.PARTITIONS] + 4 * row)
        if not 0 <= partition < count:
            return k.BAD_PARTITION
        return first_slot + partition
    size = _value_size(state, k.KEY, row)
    if size >= 0:
        source = state[k.KEY + k.DATA] + load_native32(state[k.KEY + k.NUMBERS] + 4 * row)
        return first_slot + (murmur2(source, size) & 0x7FFFFFFF) % count
    state[k.IS_STICKY] = 1
    return first_slot + int(topic[k.TOPIC_STICKY])


@inlined
def _append(state: Any, slot: Any, row: int) -> int:
    """Append a row to the batch in a slot, the buffer of its partition's batch, and return DONE. FULL (the row does not
    fit into the buffer), BAD_HEADER (a header has no name) or TOO_LARGE (the row is too large for any batch) means that
    no byte was appended.
    """
    if slot[k.SLOT_COUNT] == 0:
        slot[k.SLOT_BASE_TIMESTAMP] = slot[k.SLOT_MAX_TIMESTAMP] = state[k.NOW]
    timestamp_delta, offset_delta = state[k.NOW] - slot[k.SLOT_BASE_TIMESTAMP], slot[k.SLOT_COUNT]
    key_size, value_size = _value_size(state, k.KEY, row), _value_size(state, k.VALUE, row)
    headers_size = _headers_size(state, row)
    if headers_size < 0:
        return headers_size
    size = 1 + _varint_size(timestamp_delta) + _varint_size(offset_delta)
    size += _field_size(key_size) + _field_size(value_size) + headers_size
    needed = size + _varint_size(size)
    state[k.NEEDED] = needed
    if needed > state[k.RECORD_SIZE_MAX]:
        return k.TOO_LARGE
    if needed > slot[k.SLOT_CAPACITY] - slot[k.SLOT_SIZE]:
        return k.FULL
    address = _put_varint(slot[k.SLOT_ADDRESS] + slot[k.SLOT_SIZE], size)
    store_byte(address, 0)  # the attributes byte of a record, which Kafka does not use
    address = _put_varint(address + 1, timestamp_delta)
    address = _put_varint(address, offset_delta)
    address = _put_field(state, k.KEY, row, key_size, address)
    address = _put_field(state, k.VALUE, row, value_size, address)
    address = _put_headers(state, row, address)
    slot[k.SLOT_SIZE] += needed
    slot[k.SLOT_COUNT] += 1
    slot[k.SLOT_MAX_TIMESTAMP] = max(slot[k.SLOT_MAX_TIMESTAMP], state[k.NOW])
    return k.DONE


def _encode_rows(state: Any, topics: Any, slots: Any) -> int:
    """Append the rows from row `state[ROW]` on to the batches of their partitions. `topics` has the partitions of each
    topic, and `slots` describes the buffer of each partition's batch.

    Returns:
        DONE after the last row. FULL if a row of `state[NEEDED]` bytes does not fit into slot `state[SLOT]`, the buffer
        of its partition's batch. Then `state[IS_STICKY]` says whether the row may go to another partition.
        BAD_PARTITION, BAD_HEADER or TOO_LARGE if row `state[ROW]` is not valid.
    """
    row, count = state[k.ROW], state[k.ROW_COUNT]
    status = k.DONE
    while row < count:
        number = _slot_of(state, topics, row)
        if number < 0:
            status = number
            break
        status = _append(state, entry_at(slots, number * k.SLOT_WIDTH), row)
        if status != k.DONE:
            state[k.SLOT] = number
            break
        row += 1
    state[k.ROW] = row
    return status


def _hash_key(state: Any) -> int:
    return murmur2(state[0], state[1])


KERNELS = {"encode_rows": (_encode_rows, 3), "hash_key": (_hash_key, 1)}
