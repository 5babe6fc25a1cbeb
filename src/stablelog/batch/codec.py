"""The compression codecs of record batches. This is a module of its own, so that settings can name a codec without an
import of the CRC library.
"""

from enum import IntEnum


class Codec(IntEnum):
    """The compression codec of a batch's records, by Kafka's number."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS = tuple(Codec)  # by codec number: indexing a tuple is faster than a call of the enum
