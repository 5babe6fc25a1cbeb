"""The kernels (compiled functions) of the encoder, and the indexes of the values in the arrays that they take as
arguments.

`encode_rows` appends each row to the batch of its partition, in buffers that the encoder owns, and stops at a row that
does not fit into its partition's buffer. The next call continues with that row. The source code of the kernels is in
`kernels.encode_source`. This module does not import Numba, whose import would take longer than the rest of a worker's
start.
"""

import numpy as np
import numpy.typing as npt

from stablelog.spark.kernels.cache import kernel

SOURCE = "stablelog.spark.kernels.encode_source"

# The indexes of the values in the array `state` of `encode_rows`: how far the kernel has encoded, and the columns of
# the rows.
ROW, ROW_COUNT, NOW, SLOT, NEEDED, IS_STICKY, RECORD_SIZE_MAX = range(7)
TOPICS = 7  # address of the array with the topic number of each row; 0 if all rows have topic 0
# The first index of each column of the rows.
PARTITIONS, LISTS, KEY, VALUE, NAME, CONTENT = 8, 11, 14, 18, 22, 26
# These indexes are added to the first index of a column: the address of its numbers or offsets, the address of its
# validity bits, the first of these bits, and the address of its bytes. Partitions and lists of headers have no bytes.
# Address 0 means that there is no such array.
NUMBERS, VALIDITY, BIT, DATA = range(4)
STATE_WIDTH = 30

# The columns of the table with a row for each topic.
TOPIC_FIRST_SLOT, TOPIC_PARTITION_COUNT, TOPIC_STICKY = range(3)
TOPIC_WIDTH = 3

# The columns of the table of slots. A slot has the incomplete batch of one partition.
SLOT_ADDRESS, SLOT_SIZE, SLOT_CAPACITY, SLOT_COUNT, SLOT_BASE_TIMESTAMP, SLOT_MAX_TIMESTAMP = range(6)
SLOT_WIDTH = 6

DONE, FULL = 0, 1
BAD_PARTITION, BAD_HEADER, TOO_LARGE = -1, -2, -3

HEADER_SIZE = 61
MURMUR_SEED, MURMUR_MIX = 0x9747B28C, 0x5BD1E995
LOW_32 = 0xFFFFFFFF


def encode_rows(
    state: npt.NDArray[np.int64], topics: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]
) -> int:
    """Append the rows from row `state[ROW]` on to the batches of their partitions. `topics` has the partitions of each
    topic, and `slots` describes the buffer of each partition's batch.

    Returns:
        DONE after the last row. FULL if a row of `state[NEEDED]` bytes does not fit into slot `state[SLOT]`, the buffer
        of its partition's batch. Then `state[IS_STICKY]` says whether the row may go to another partition.
        BAD_PARTITION, BAD_HEADER or TOO_LARGE if row `state[ROW]` is not valid.
    """
    assert len(state) == STATE_WIDTH
    assert topics.shape[1] == TOPIC_WIDTH
    assert slots.shape[1] == SLOT_WIDTH
    return kernel(SOURCE, "encode_rows")(state, topics, slots)


def hash_key(address: int, size: int) -> int:
    """Return Kafka's hash (murmur2) of the key at an address, 0 to 2^32 - 1."""
    return kernel(SOURCE, "hash_key")(np.array([address, size], np.int64))
