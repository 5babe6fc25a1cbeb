"""The codecs of record batches: a module of its own, so that settings can name a codec without the library of the CRC."""

from enum import IntEnum


class Codec(IntEnum):
    """The compression of a batch's records."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS = tuple(Codec)  # by codec number: indexing a tuple is faster than a call of the enum
