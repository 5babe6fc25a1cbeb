"""Requests and responses: bytes to the newest shape of a message, and back to the version that was asked for.

The classes and their readers are kio's. Version modules are imported when a client first speaks them.
"""

import dataclasses
import importlib
import io
import struct
import typing
from functools import cache, lru_cache
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from stablelog.errors import Refused
from stablelog.wire.extension import EXTENSION_NAMES, EXTENSION_VERSIONS, extension_module
from stablelog.wire.guard import checked, skip_tagged_fields
from stablelog.wire.produce import VERSION_FLEXIBLE, decode_produce_request
from stablelog.wire.shapes import error_for, reshape_request, reshape_response
from stablelog.wire.versions import adapt, entity_in, refuse_nulls

Buffer = bytes | bytearray | memoryview

PREFIX = struct.Struct(">hhi")  # api key, api version, correlation id
CLIENT_ID_SIZE = struct.Struct(">h")
RESPONSE_HEADER = struct.Struct(">i")

PRODUCE_KEY = 0
API_VERSIONS_KEY = 18
FETCH_KEY = 1

# What is spoken: api key -> (first version, last version). docs/protocol.md tells of each.
# Produce is advertised from version 0, as Kafka does: librdkafka before 2.11.1 would else not compress. It is
# served from 3, the first with record batches of version 2.
API_VERSIONS: dict[int, tuple[int, int]] = {
    0: (0, 12),
    1: (4, 17),
    2: (1, 8),
    3: (0, 13),
    8: (2, 9),
    9: (1, 9),
    10: (0, 5),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    18: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 6),
    23: (2, 4),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    27: (1, 2),
    28: (0, 5),
    32: (1, 4),
    35: (1, 4),
    37: (0, 3),
    42: (0, 2),
    44: (0, 1),
    47: (0, 0),
    60: (0, 1),
    61: (0, 0),
    65: (0, 0),
    66: (0, 2),
    **EXTENSION_VERSIONS,
}
SERVED_FROM = {0: 3}  # where it is not the advertised first version


def api_name(api_key: int) -> str:
    """An API's name in snake case: Kafka's, or ours for what Kafka does not have."""
    return EXTENSION_NAMES.get(api_key) or str(api_key_map[api_key])


@cache
def _module(api_key: int, version: int, kind: str) -> Any:
    return importlib.import_module(f"kio.schema.{api_key_map[api_key]}.v{version}.{kind}")


@cache
def message_class(api_key: int, version: int, kind: str) -> Any:
    """The class of a whole request or response of one version."""
    is_extension = api_key in EXTENSION_NAMES
    module = extension_module(api_key) if is_extension else _module(api_key, version, kind)
    name = "".join(word.capitalize() for word in api_name(api_key).split("_")) + kind.capitalize()
    return getattr(module, name)


@cache
def _reader(api_key: int, version: int) -> Any:
    return entity_reader(message_class(api_key, version, "request"))


@cache
def _writer(api_key: int, version: int) -> Any:
    return entity_writer(message_class(api_key, version, "response"))


def import_messages(api_key: int, version: int) -> None:
    """Import what is needed to decode the requests of an API's version, and to encode its responses.

    It would be imported with the first of them otherwise; that takes up to 25 ms of processor time.
    """
    if version < SERVED_FROM.get(api_key, 0):
        return  # a request of that version is refused
    if api_key == PRODUCE_KEY:
        return  # it is read and answered without kio's classes
    newest = API_VERSIONS[api_key][1]
    _reader(api_key, version)
    message_class(api_key, newest, "request")
    if api_key == FETCH_KEY:
        return  # it is answered without them
    _writer(api_key, version)
    message_class(api_key, newest, "response")


def decode_request(api_key: int, version: int, frame: Buffer) -> tuple[str | None, Any]:
    """Decode a request, header and body.

    Args:
        api_key: as the frame says; one of API_VERSIONS.
        version: as the frame says; one that API_VERSIONS names.
        frame: the request without its length.

    Returns:
        The client id, and the request in its newest shape (a Fetch in the shape in which it came, whose topics
        have names or ids; a Produce in the one shape of `wire.produce`).

    Raises:
        Refused: the bytes are not this request.
    """
    if version < SERVED_FROM.get(api_key, 0):
        raise Refused(
            ErrorCode.unsupported_version,
            f"{api_name(api_key)} version {version} is older than record batches",
        )
    try:
        if api_key == PRODUCE_KEY:
            client_id, at = _read_header(frame, flexible=version >= VERSION_FLEXIBLE)
            return client_id, decode_produce_request(version, frame, at)
        request_class = message_class(api_key, version, "request")
        client_id, at = _read_header(frame, flexible=request_class.__flexible__)
        if api_key in _REPEATED_REQUESTS and len(frame) - at <= _REPEATED_SIZE_MAX:
            return client_id, _decode_once(api_key, version, bytes(frame[at:]))
        return client_id, _decode_body(api_key, version, frame, at)
    except (
        SerialError,
        ValueError,
        OverflowError,
        struct.error,
        UnicodeError,
        MemoryError,
        TypeError,
        KeyError,
    ) as error:
        name = api_name(api_key)
        raise Refused(
            ErrorCode.invalid_request, f"not a {name} request of version {version}: {error!r}"
        ) from error


def _decode_body(api_key: int, version: int, frame: Buffer, at: int = 0) -> Any:
    request_class = message_class(api_key, version, "request")
    frame = checked(request_class, frame, at)
    # Bytes behind the request are passed over, as Kafka does: librdkafka 2.16 leaves three behind a Metadata
    # request for all topics.
    request, _ = _reader(api_key, version)(frame, at)
    refuse_nulls(request)
    return _newest_shape(api_key, version, request)


# Requests that a client sends again and again with the same body: Heartbeat, AddPartitionsToTxn, AddOffsetsToTxn and,
# from clients of TV1, EndTxn. They are immutable.
_REPEATED_REQUESTS = frozenset({12, 24, 25, 26})
_REPEATED_SIZE_MAX = 512
_decode_once = lru_cache(maxsize=1024)(_decode_body)


def _newest_shape(api_key: int, version: int, request: Any) -> Any:
    newest = API_VERSIONS[api_key][1]
    if api_key == FETCH_KEY or version == newest:
        return request
    reshaped = reshape_request(api_key, version, request, _module(api_key, newest, "request"))
    return reshaped if reshaped is not None else adapt(request, message_class(api_key, newest, "request"))


def _read_header(frame: Buffer, *, flexible: bool) -> tuple[str | None, int]:
    """The client id, and where the body begins. Request header v1, or v2 with tagged fields."""
    at = PREFIX.size
    (size,) = CLIENT_ID_SIZE.unpack_from(frame, at)
    at += CLIENT_ID_SIZE.size
    client_id = None
    if size >= 0:
        if at + size > len(frame):
            raise ValueError("the client id is cut short")
        client_id = bytes(frame[at : at + size]).decode()
        at += size
    if flexible:
        at = skip_tagged_fields(frame, at)
    return client_id, at


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The header of a response: v1 with (no) tagged fields where the API is flexible, but for ApiVersions."""
    flexible = message_class(api_key, version, "response").__flexible__ and api_key != API_VERSIONS_KEY
    return RESPONSE_HEADER.pack(correlation_id) + (b"\0" if flexible else b"")


def encode_response(api_key: int, version: int, correlation_id: int, response: Any) -> list[bytes]:
    """Encode a response, given in its newest shape, in the version that the client speaks.

    Returns:
        Header and body, without their length.
    """
    body = _encode_once if api_key in _REPEATED_APIS else _encode_body
    return [response_header(api_key, version, correlation_id), body(api_key, version, response)]


def _encode_body(api_key: int, version: int, response: Any) -> bytes:
    response = _with_known_errors(api_key, version, response)
    target = message_class(api_key, version, "response")
    if type(response) is not target:
        older = _module(api_key, version, "response")
        reshaped = reshape_response(api_key, version, response, older, adapt)
        response = reshaped if reshaped is not None else adapt(response, target)
    buffer = io.BytesIO()
    _writer(api_key, version)(buffer, response)
    return buffer.getvalue()


# Answered over and over with the same: Heartbeat, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit.
_REPEATED_APIS = frozenset({12, 24, 25, 26, 28})
_REPEATED_COUNT_MAX = 256
_repeated: dict[tuple[int, int, Any], bytes] = {}


def _encode_once(api_key: int, version: int, response: Any) -> bytes:
    """The body as it was encoded before, if it was of late."""
    key = (api_key, version, response)
    body = _repeated.get(key)
    if body is None:
        body = _encode_body(api_key, version, response)
        if len(body) <= _REPEATED_SIZE_MAX:
            if len(_repeated) >= _REPEATED_COUNT_MAX:
                _repeated.clear()
            _repeated[key] = body
    return body


def _with_known_errors(api_key: int, version: int, response: Any) -> Any:
    """The response with every error code one that the client's version knows."""
    if version >= 11 or api_key not in _APIS_WITH_NEWER_ERRORS:
        return response
    return _map_errors(api_key, version, response)


_APIS_WITH_NEWER_ERRORS = frozenset({0, 22, 24, 25, 26, 28})


@cache
def _error_fields(message: Any) -> tuple[tuple[str, bool], ...]:
    """The fields of a message that hold an error, or an array of messages that do: (name, whether it is these)."""
    found = []
    for field in dataclasses.fields(message):
        item = entity_in(field.type)
        if field.type is ErrorCode:
            found.append((field.name, False))
        elif item is not None and typing.get_origin(field.type) is tuple and _error_fields(item):
            found.append((field.name, True))
    return tuple(found)


def _map_errors(api_key: int, version: int, message: Any) -> Any:
    changes: dict[str, Any] = {}
    message_type: Any = type(message)
    for name, holds_messages in _error_fields(message_type):
        before = getattr(message, name)
        if holds_messages:
            items = tuple([_map_errors(api_key, version, item) for item in before])
            if any(new is not old for new, old in zip(items, before, strict=True)):
                changes[name] = items
        elif before is not ErrorCode.none:
            changes[name] = error_for(api_key, version, before)
    return dataclasses.replace(message, **changes) if changes else message
