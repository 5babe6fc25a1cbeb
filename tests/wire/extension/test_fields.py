"""The types of fields, as kio writes them in Kafka's encoding."""

import uuid
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32, i64

from stablelog.wire.extension.fields import (
    BOOL,
    ERROR,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    ExtensionRequest,
    ExtensionResponse,
    Nested,
)
from stablelog.wire.guard import checked
from tests.wire.extension.coding import decoded, encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Nested):
    number: i32 = field(metadata=INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryTypeRequest(ExtensionRequest):
    __api_key__: ClassVar = i16(20_000)
    flag: bool = field(metadata=BOOL)
    short: i16 = field(metadata=INT16)
    number: i32 = field(metadata=INT32)
    long: i64 = field(metadata=INT64)
    text: str | None = field(metadata=STRING)
    identity: uuid.UUID | None = field(metadata=UUID)
    code: ErrorCode = field(metadata=ERROR)
    inner: tuple[Inner, ...]


EVERY = EveryTypeRequest(
    flag=True,
    short=i16(-2),
    number=i32(3),
    long=i64(4),
    text="ä",
    identity=uuid.UUID(int=5),
    code=ErrorCode.invalid_request,
    inner=(Inner(number=i32(6)),),
)
BYTES = (
    b"\1"
    + (-2).to_bytes(2, "big", signed=True)
    + (3).to_bytes(4, "big")
    + (4).to_bytes(8, "big")
    + b"\3\xc3\xa4"
    + uuid.UUID(int=5).bytes
    + (42).to_bytes(2, "big")
    + b"\2"  # one item
    + (6).to_bytes(4, "big")
    + b"\0\0"  # no tagged fields in the item, and in the message
)


def test_each_type_is_encoded_as_in_a_flexible_version_of_kafka():
    assert encoded(EVERY) == BYTES
    assert decoded(EveryTypeRequest, BYTES) == EVERY


def test_the_check_of_counts_and_lengths_knows_each_type():
    assert checked(EveryTypeRequest, BYTES, 0) == BYTES
    for end in range(len(BYTES)):
        with pytest.raises((ValueError, IndexError)):
            decoded(EveryTypeRequest, checked(EveryTypeRequest, BYTES[:end], 0))


def test_a_request_and_a_response_have_kafkas_headers_with_tagged_fields():
    assert ExtensionRequest.__header_schema__.__version__ == 2
    assert ExtensionResponse.__header_schema__.__version__ == 1
    assert ExtensionRequest.__flexible__
    assert ExtensionResponse.__flexible__


def test_there_is_one_version():
    assert Nested.__version__ == ExtensionRequest.__version__ == ExtensionResponse.__version__ == 0
