"""Compression of the records of a batch: Kafka's four codecs in Kafka's framings, with a limit of the decompressed
size.

A batch from a client may be a decompression bomb: a few kilobytes that decompress to gigabytes. Each function here has
a limit as an argument, and does not allocate much more memory than this limit. Before a function raises an error, it
frees what it has decompressed, because the traceback of an error keeps the local variables of the functions through
which it was raised.

Format: docs/reference/formats.md, "Compression".
"""

import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import cramjam

from stablelog.batch.header import Buffer, Codec
from stablelog.errors import DamageError, DecompressedSizeError

SIZE_MAX = 64 << 20

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = struct.Struct(">8sii")  # header of snappy data: magic, version, oldest compatible version
XERIAL_CHUNK_SIZE = 32 << 10
CHUNK_LENGTH = struct.Struct(">i")
# Kafka's Java client refuses an lz4 frame whose blocks depend on each other, and cramjam makes no other frames. So frames
# are assembled here: magic, flags (version 1, independent blocks, no checksums), blocks of at most 64 KiB, and the
# checksum of the two bytes before it.
LZ4_HEADER = bytes.fromhex("04224d18604082")
LZ4_BLOCK_SIZE = 64 << 10
LZ4_LENGTH = struct.Struct("<I")
LZ4_NOT_COMPRESSED = 1 << 31  # the bit of a block's length that says so
# What the Java client's reader of a frame looks at.
LZ4_MAGIC = LZ4_HEADER[:4]
LZ4_FLAGS_NEEDED = 0x60  # version 1, and blocks that do not depend on each other
LZ4_FLAGS_DEMANDED = (
    0xE3  # the bits of the version and of the blocks, and the two lowest: reserved, and a dictionary
)
LZ4_BLOCK_CHECKSUMS, LZ4_CONTENT_SIZE, LZ4_CONTENT_CHECKSUM = 0x10, 0x08, 0x04
# A gzip member is decompressed in portions of this many bytes. At its end zlib copies the rest of the portion.
GZIP_FED_SIZE = 16 << 10
# The buffer for lz4 and zstd has first this many times the size of the compressed records. If they do not fit, they are
# decompressed again into a buffer of GROWTH times the size.
FIRST_RATIO = 8
GROWTH = 4


def compress(codec: Codec, plain: Buffer) -> bytes:
    """Compress the records of a batch."""
    return bytes(COMPRESSORS[codec](plain))


def decompress(codec: Codec, packed: Buffer, size_max: int | None = None) -> bytes:
    """Decompress the records of a batch.

    Args:
        codec: the codec of the batch.
        packed: the compressed records of the batch.
        size_max: the limit of the decompressed size in bytes. None stands for SIZE_MAX, or for no limit if the records
            are not compressed.

    Raises:
        DecompressedSizeError: the records have more than `size_max` bytes.
        DamageError: the bytes are not in this codec's format.
    """
    if size_max is None:
        size_max = len(packed) if codec is Codec.NONE else SIZE_MAX
    try:
        plain = DECOMPRESSORS[codec](packed, size_max)
    except (cramjam.DecompressionError, zlib.error, struct.error, ValueError, EOFError) as error:
        raise DamageError(
            f"the records of a batch cannot be decompressed as {codec.name.lower()}: {error}"
        ) from error
    if len(plain) > size_max:
        del plain
        raise _too_large(codec, size_max)
    return plain


def check_framing(codec: Codec, packed: Buffer) -> None:
    """Refuse compressed records that `decompress` can read, but Kafka's Java client cannot.

    The Java client has its own readers of lz4 and snappy. It reads a single lz4 frame with independent blocks, and
    xerial framing (the format of snappy in Kafka) from version 1 on.

    Raises:
        DamageError: the Java client cannot decompress the records.
    """
    if codec is Codec.LZ4:
        _check_lz4_frame(memoryview(packed))
    elif codec is Codec.SNAPPY and bytes(packed[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
        _check_xerial_header(packed)


def _check_xerial_header(packed: Buffer) -> None:
    if len(packed) < XERIAL_HEADER.size or XERIAL_HEADER.unpack_from(packed)[1] < 1:
        raise DamageError(
            "the snappy-compressed records of a batch do not have an xerial header of version 1"
        )


def _check_lz4_frame(packed: memoryview) -> None:
    if bytes(packed[:4]) != LZ4_MAGIC or len(packed) < len(LZ4_HEADER):
        raise DamageError("lz4 records of a batch do not begin with an lz4 frame")
    flags = packed[4]
    if flags & LZ4_FLAGS_DEMANDED != LZ4_FLAGS_NEEDED:
        raise DamageError(
            f"the flags of an lz4 frame are {flags:#04x}; Kafka's Java client reads only frames of version 1 whose blocks "
            "do not depend on each other (block_linked=False), without a dictionary"
        )
    at = len(LZ4_HEADER) + (8 if flags & LZ4_CONTENT_SIZE else 0)
    checksum_size = LZ4_LENGTH.size if flags & LZ4_BLOCK_CHECKSUMS else 0
    try:
        while size := LZ4_LENGTH.unpack_from(packed, at)[0]:
            at += LZ4_LENGTH.size + (size & ~LZ4_NOT_COMPRESSED) + checksum_size
    except struct.error:
        raise DamageError("the lz4 frame with the records of a batch is incomplete") from None
    end = at + LZ4_LENGTH.size * (2 if flags & LZ4_CONTENT_CHECKSUM else 1)
    if end != len(packed):
        raise DamageError(
            f"the lz4-compressed records of a batch have {len(packed)} bytes, but their first lz4 "
            f"frame ends after {end} bytes; Kafka's clients read only one frame"
        )


def _too_large(codec: Codec, size_max: int) -> DecompressedSizeError:
    return DecompressedSizeError(
        f"{codec.name.lower()} records of a batch decompress to more than {size_max} bytes"
    )


def _decompress_gzip(packed: Buffer, size_max: int) -> bytes:
    view, at, left = memoryview(packed), 0, size_max
    parts: list[bytes] = []
    try:
        while at < len(view):  # a gzip stream may consist of several members, one after the other
            unpacker = zlib.decompressobj(wbits=31)
            while not unpacker.eof:
                fed = view[at : at + GZIP_FED_SIZE]
                if not fed:
                    raise EOFError("the data ends within a gzip member")
                parts.append(unpacker.decompress(fed, left + 1))
                left -= len(parts[-1])
                if left < 0:
                    raise _too_large(Codec.GZIP, size_max)
                at += len(fed) - len(unpacker.unused_data)
        return b"".join(parts)
    finally:
        parts.clear()


def _decompress_into(unpack: Callable[[Buffer, bytearray], int], packed: Buffer, size_max: int) -> bytes:
    """Decompress into a buffer, and try again with larger buffers up to `size_max` bytes while the data does not fit.
    `unpack` decompresses the bytes into the buffer, and returns the size of the result.
    """
    size = min(max(len(packed) * FIRST_RATIO, 4096), size_max)
    while True:
        target = bytearray(size)  # size_max bytes at most
        try:
            return bytes(memoryview(target)[: unpack(packed, target)])
        except cramjam.DecompressionError as error:
            # cramjam has no error class for a buffer that is too small
            if "failed to write whole buffer" not in str(error):
                raise
        finally:
            del target
        if size >= size_max:
            raise DecompressedSizeError(f"the records of a batch decompress to more than {size_max} bytes")
        size = min(size * GROWTH, size_max)


def _compress_xerial(records: Buffer) -> bytes:
    plain = memoryview(records)
    parts = [XERIAL_HEADER.pack(XERIAL_MAGIC, 1, 1)]
    for at in range(0, len(plain), XERIAL_CHUNK_SIZE):
        chunk = bytes(cramjam.snappy.compress_raw(plain[at : at + XERIAL_CHUNK_SIZE]))
        parts += [CHUNK_LENGTH.pack(len(chunk)), chunk]
    return b"".join(parts)


def _compress_lz4(records: Buffer) -> bytes:
    plain = memoryview(records)
    parts = [LZ4_HEADER]
    for at in range(0, len(plain), LZ4_BLOCK_SIZE):
        block = plain[at : at + LZ4_BLOCK_SIZE]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += [LZ4_LENGTH.pack(len(packed)), packed]
        else:
            parts += [LZ4_LENGTH.pack(len(block) | LZ4_NOT_COMPRESSED), bytes(block)]
    parts.append(LZ4_LENGTH.pack(0))
    return b"".join(parts)


def _decompress_snappy(records: Buffer, size_max: int) -> bytes:
    packed = memoryview(records)
    if bytes(packed[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _decompress_raw_snappy(packed, size_max)
    parts: list[bytes] = []
    at, left = XERIAL_HEADER.size, size_max
    try:
        while at < len(packed):
            size = CHUNK_LENGTH.unpack_from(packed, at)[0]
            at += CHUNK_LENGTH.size
            if not 0 <= size <= len(packed) - at:
                raise ValueError(
                    f"a chunk of snappy-compressed records has a size of {size} bytes, but only "
                    f"{len(packed) - at} bytes are left"
                )
            chunk = packed[at : at + size]
            left -= cramjam.snappy.decompress_raw_len(chunk)
            if left < 0:
                raise _too_large(Codec.SNAPPY, size_max)
            parts.append(bytes(cramjam.snappy.decompress_raw(chunk)))
            at += size
        return b"".join(parts)
    finally:
        parts.clear()


def _decompress_raw_snappy(packed: memoryview, size_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(packed) > size_max:
        raise _too_large(Codec.SNAPPY, size_max)
    return bytes(cramjam.snappy.decompress_raw(packed))


COMPRESSORS: dict[Codec, Callable[[Buffer], Any]] = {
    Codec.NONE: bytes,
    Codec.GZIP: cramjam.gzip.compress,
    Codec.SNAPPY: _compress_xerial,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: cramjam.zstd.compress,
}
DECOMPRESSORS: dict[Codec, Callable[[Buffer, int], bytes]] = {
    Codec.NONE: lambda packed, _size_max: bytes(packed),
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: partial(_decompress_into, cramjam.lz4.decompress_into),
    Codec.ZSTD: partial(_decompress_into, cramjam.zstd.decompress_into),
}
