"""A fetch of one partition, by hand: the records stay where they were received.

Versions 4 to 12. Sessions are not used; topics have names, so 12 is the newest that will do.
"""

import struct
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from stablelog.wire.guard import read_uvarint, skip_tagged_fields
from stablelog.wire.messages import Buffer

VERSION_WITH_LOG_START = 5
VERSION_WITH_SESSIONS = 7
VERSION_WITH_LEADER_EPOCH = 9
VERSION_WITH_RACK = 11
VERSION_FLEXIBLE = 12

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_PARTITION = struct.Struct(">ihqq")  # index, error, high watermark, last stable offset


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a leader handed out of one partition.

    Attributes:
        records: whole v2 record batches as they stand in the log; the last may be cut off.
        aborted: (producer id, first offset) of the aborted transactions among them; none for read_uncommitted.
        high_watermark: first offset that is not durable.
        last_stable_offset: first offset whose fate is not known.
        start_offset: first offset of the log; -1 if the broker does not say.
        error: what the broker refused it with.
    """

    records: memoryview
    aborted: list[tuple[int, int]]
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    error: ErrorCode


def fetch_request(
    version: int, topic: str, partition: int, offset: int, size_max: int, isolation: int, *, wait_ms: int
) -> bytes:
    """The body of a request for one partition."""
    flexible = version >= VERSION_FLEXIBLE
    one = b"\2" if flexible else _INT32.pack(1)  # the length of an array of one
    none = b"\1" if flexible else _INT32.pack(0)
    tags = b"\0" if flexible else b""
    out = bytearray(struct.pack(">iiiib", -1, wait_ms, 1, size_max, isolation))
    if version >= VERSION_WITH_SESSIONS:
        out += struct.pack(">ii", 0, -1)  # no session
    out += one + string(topic, flexible=flexible) + one + _INT32.pack(partition)
    if version >= VERSION_WITH_LEADER_EPOCH:
        out += _INT32.pack(-1)  # whatever the leader's epoch is
    out += _INT64.pack(offset)
    if flexible:
        out += _INT32.pack(-1)  # last fetched epoch: followers only
    if version >= VERSION_WITH_LOG_START:
        out += _INT64.pack(-1)
    out += _INT32.pack(size_max) + tags + tags
    if version >= VERSION_WITH_SESSIONS:
        out += none
    if version >= VERSION_WITH_RACK:
        out += string("", flexible=flexible)
    return bytes(out + tags)


def string(text: str, *, flexible: bool) -> bytes:
    """A string as it stands in a message."""
    encoded = text.encode()
    return (uvarint(len(encoded) + 1) if flexible else _INT16.pack(len(encoded))) + encoded


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_fetch_response(version: int, body: memoryview) -> Fetched:
    """Read the answer to a request for one partition."""
    flexible = version >= VERSION_FLEXIBLE
    at = _INT32.size  # throttle time
    if version >= VERSION_WITH_SESSIONS:
        error = ErrorCode(_INT16.unpack_from(body, at)[0])
        at += _INT16.size + _INT32.size
        if error is not ErrorCode.none:
            return Fetched(memoryview(b""), [], -1, -1, -1, error)
    topic_count, at = _count(body, at, flexible=flexible)
    if topic_count != 1:
        return Fetched(memoryview(b""), [], -1, -1, -1, ErrorCode.unknown_server_error)
    name_size, at = _count(body, at, flexible=True) if flexible else (_INT16.unpack_from(body, at)[0], at + 2)
    at += name_size
    _, at = _count(body, at, flexible=flexible)
    _, code, high_watermark, last_stable_offset = _PARTITION.unpack_from(body, at)
    at += _PARTITION.size
    start_offset = -1
    if version >= VERSION_WITH_LOG_START:
        start_offset = _INT64.unpack_from(body, at)[0]
        at += _INT64.size
    aborted = []
    aborted_count, at = _count(body, at, flexible=flexible)
    for _ in range(aborted_count):
        aborted.append(_ABORTED.unpack_from(body, at))
        at += _ABORTED.size
        if flexible:
            at = skip_tagged_fields(body, at)
    if version >= VERSION_WITH_RACK:
        at += _INT32.size  # preferred replica
    size, at = _count(body, at, flexible=flexible)
    records = body[at : at + max(size, 0)]
    return Fetched(records, aborted, high_watermark, last_stable_offset, start_offset, ErrorCode(code))


def _count(body: Buffer, at: int, *, flexible: bool) -> tuple[int, int]:
    """A length or count, -1 for a null; and where the next thing begins."""
    if flexible:
        value, at = read_uvarint(body, at)
        return value - 1, at
    return _INT32.unpack_from(body, at)[0], at + _INT32.size
