"""Change of the compression codec of a batch.

The bytes of the records stay the same, and so do their offsets and timestamps. The header changes only in the codec,
the length and the CRC.

Format: docs/reference/formats.md, "Record batch", "Compression".
"""

from stablelog.batch import compression
from stablelog.batch.header import CODEC_MASK, BatchHeader, Codec, assemble


def recompress(header: BatchHeader, plain: bytes, codec: Codec) -> bytes:
    """Return a batch with its records compressed by another codec.

    Args:
        header: the header of the batch.
        plain: the decompressed records of the batch.
        codec: the new codec; `Codec.NONE` for no compression. More than SIZE_MAX bytes of records are not compressed,
            because readers would not decompress them.
    """
    if len(plain) > compression.SIZE_MAX:
        codec = Codec.NONE
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compression.compress(codec, plain))
