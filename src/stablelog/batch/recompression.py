"""Change of the compression codec of a batch.

The records keep all their bytes, and so their offsets and timestamps. The header changes only in the codec, the length
and the CRC.

Format: docs/formats.md, "Record batch", "Compression".
"""

from stablelog.batch.compression import compress, decompress
from stablelog.batch.header import CODEC_MASK, HEADER, BatchHeader, Buffer, Codec, assemble


def recompress(header: BatchHeader, batch: Buffer, codec: Codec) -> bytes:
    """Return the batch at the beginning of the buffer with its records compressed by another codec.

    Args:
        header: the header of the batch.
        batch: the buffer; it holds the whole batch.
        codec: the codec of the result; `Codec.NONE` for records without compression.

    Raises:
        DamageError: the records cannot be decompressed, or are more than `compression.SIZE_MAX` bytes then.
    """
    plain = decompress(header.codec, memoryview(batch)[HEADER.size : header.size])
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(codec, plain))
