"""Codec for requests and responses. A request of any version is decoded into the last version of its API, and a
response of the last version is encoded in the version of the client, so that handlers work with one version only.

The message classes and their readers are those of the library kio (`wire.message_classes`). Its part for reading and
writing is imported with the classes of the first message, because that import takes a twentieth of a broker's start.
"""

import dataclasses
import io
import struct
import typing
from collections.abc import Callable, Generator
from functools import cache, lru_cache
from typing import Any, Final

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError, in_words
from stablelog.wire import fetch, message_classes, produce
from stablelog.wire.api import Api, ApiKey
from stablelog.wire.guard import Buffer, checked, skip_tagged_fields
from stablelog.wire.shapes import APIS_WITH_NEWER_ERRORS, error_for, reshape_request, reshape_response
from stablelog.wire.versions import adapt, entity_in, refuse_nulls

PREFIX = message_classes.PREFIX
CLIENT_ID_SIZE = message_classes.CLIENT_ID_SIZE
message_class = message_classes.message_class
message_module = message_classes.message_module
RESPONSE_HEADER = struct.Struct(">i")
# The APIs whose messages are read and written without kio: the first flexible version, and the decoder of requests.
BY_HAND: Final[dict[int, tuple[int, Callable[[int, Buffer, int], Any]]]] = {
    ApiKey.PRODUCE: (produce.VERSION_FLEXIBLE, produce.decode_produce_request),
    ApiKey.FETCH: (fetch.VERSION_FLEXIBLE, fetch.decode_fetch_request),
}


@cache
def _undecodable() -> tuple[type[Exception], ...]:
    """Return the exceptions that decoders raise if the bytes are not a request."""
    from kio.serial.errors import SerialError

    usual = (ValueError, OverflowError, struct.error, UnicodeError, MemoryError, TypeError, KeyError)
    return SerialError, *usual


@cache
def _reader(api_key: int, version: int) -> Any:
    from kio.serial import entity_reader

    return entity_reader(message_class(api_key, version, "request"))


@cache
def _writer(api_key: int, version: int) -> Any:
    from kio.serial import entity_writer

    return entity_writer(message_class(api_key, version, "response"))


def import_messages(api: Api, version: int) -> None:
    """Import what is needed to decode the requests of an API's version and to encode its responses.

    Without this call, the first request of the version imports these modules, which takes up to 25 ms of processor
    time.
    """
    if api.key in BY_HAND:
        return
    _reader(api.key, version)
    message_class(api.key, api.last_version, "request")
    _writer(api.key, version)
    message_class(api.key, api.last_version, "response")


def decode_request(api: Api, version: int, frame: Buffer) -> tuple[str | None, Any]:
    """Decode the header and the body of a request.

    Args:
        api: the API of the request.
        version: the version in the frame; ApiVersions must name it.
        frame: the request without its length prefix.

    Returns:
        A pair: the client id, or None if the client sends none; and the request as an object of the API's last
        version. For Produce and Fetch it is an object of `wire.produce` or `wire.fetch`.

    Raises:
        RefusedError: the bytes are not a request of this API and version.
    """
    try:
        if api.key in BY_HAND:
            first_flexible, decode = BY_HAND[api.key]
            client_id, at = _read_header(frame, flexible=version >= first_flexible)
            return client_id, decode(version, frame, at)
        request_class = message_class(api.key, version, "request")
        client_id, at = _read_header(frame, flexible=request_class.__flexible__)
        if api.repeats_request and len(frame) - at <= _REPEATED_SIZE_MAX:
            return client_id, _decode_once(api, version, bytes(frame[at:]))
        return client_id, _decode_body(api, version, frame, at)
    except _undecodable() as error:
        raise _not_a_request(api.key, version, error) from error


def has_many_topics(version: int, frame: Buffer) -> bool:
    """Return whether a Produce request has so many topics that `produce_in_steps` should decode it; False if it is not
    a valid request.
    """
    try:
        _, at = _read_header(frame, flexible=version >= produce.VERSION_FLEXIBLE)
        return produce.has_many_topics(version, frame, at)
    except _undecodable():
        return False


def produce_in_steps(
    version: int, frame: Buffer
) -> Generator[None, None, tuple[str | None, produce.ProduceRequest]]:
    """Decode a Produce request in several steps, so that other requests can be served between two steps.

    Yields:
        None after each step, which takes about 1 ms.

    Returns:
        The same pair as `decode_request`: the client id, and the request.

    Raises:
        RefusedError: the bytes are not a Produce request of this version.
    """
    try:
        client_id, at = _read_header(frame, flexible=version >= produce.VERSION_FLEXIBLE)
        return client_id, (yield from produce.decode_in_steps(version, frame, at))
    except _undecodable() as error:
        raise _not_a_request(ApiKey.PRODUCE, version, error) from error


def _not_a_request(api_key: int, version: int, error: Exception) -> RefusedError:
    name = ApiKey(api_key).snake_name
    # The repr of a UnicodeDecodeError contains all the bytes.
    why = in_words(error) if isinstance(error, UnicodeDecodeError) else repr(error)
    return RefusedError(ErrorCode.invalid_request, f"not a {name} request of version {version}: {why}")


def _decode_body(api: Api, version: int, frame: Buffer, at: int = 0) -> Any:
    request_class = message_class(api.key, version, "request")
    frame = checked(request_class, frame, at)
    # Bytes after the end of the request are ignored, as in Kafka: librdkafka 2.16 sends three extra bytes after a
    # Metadata request for all topics.
    request, _ = _reader(api.key, version)(frame, at)
    refuse_nulls(request)
    return _newest_shape(api, version, request)


# Requests are immutable, so a decoded request can be cached and returned to several callers.
_REPEATED_SIZE_MAX = 512
_decode_once = lru_cache(maxsize=1024)(_decode_body)


def _newest_shape(api: Api, version: int, request: Any) -> Any:
    newest = api.last_version
    if version == newest:
        return request
    reshaped = reshape_request(api.key, version, request, message_module(api.key, newest, "request"))
    return reshaped if reshaped is not None else adapt(request, message_class(api.key, newest, "request"))


def _read_header(frame: Buffer, *, flexible: bool) -> tuple[str | None, int]:
    """Read the header of a request.

    Args:
        frame: the request without its length prefix.
        flexible: whether the header has version 2, in which tagged fields follow the client id. Otherwise it has
            version 1.

    Returns:
        A pair: the client id, or None if the client sends none; and the position of the body.
    """
    at = PREFIX.size
    (size,) = CLIENT_ID_SIZE.unpack_from(frame, at)
    at += CLIENT_ID_SIZE.size
    client_id = None
    if size >= 0:
        if at + size > len(frame):
            raise ValueError("the request ends inside the client id")
        client_id = bytes(frame[at : at + size]).decode()
        at += size
    if flexible:
        at = skip_tagged_fields(frame, at)
    return client_id, at


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Encode a response header: v1, with empty tagged fields, if the version is flexible; otherwise, and always for
    ApiVersions, v0.
    """
    flexible = message_class(api_key, version, "response").__flexible__ and api_key != ApiKey.API_VERSIONS
    return RESPONSE_HEADER.pack(correlation_id) + (b"\0" if flexible else b"")


def encode_response(api: Api, version: int, correlation_id: int, response: Any) -> list[bytes]:
    """Encode a response, which is an object of the API's last version, in the version of the client.

    Returns:
        Header and body, without the length prefix.
    """
    body = _encode_once if api.repeats_response else _encode_body
    return [response_header(api.key, version, correlation_id), body(api.key, version, response)]


def _encode_body(api_key: int, version: int, response: Any) -> bytes:
    response = _with_known_errors(api_key, version, response)
    target = message_class(api_key, version, "response")
    if type(response) is not target:
        older = message_module(api_key, version, "response")
        reshaped = reshape_response(api_key, version, response, older)
        response = reshaped if reshaped is not None else adapt(response, target)
    buffer = io.BytesIO()
    _writer(api_key, version)(buffer, response)
    return buffer.getvalue()


REPEATED_COUNT_MAX = 256
# Cache of encoded bodies of small responses that the broker often sends, by API key, version and response.
repeated: dict[tuple[int, int, Any], bytes] = {}


def _encode_once(api_key: int, version: int, response: Any) -> bytes:
    """Return the encoded body of a response. The bytes are cached: if an equal response is sent again, it is not
    encoded a second time. `response` is an object of the API's last version, which is encoded in the version `version`.
    """
    key = (api_key, version, response)
    body = repeated.get(key)
    if body is None:
        body = _encode_body(api_key, version, response)
        if len(body) <= _REPEATED_SIZE_MAX:
            if len(repeated) >= REPEATED_COUNT_MAX:
                repeated.clear()
            repeated[key] = body
    return body


def _with_known_errors(api_key: int, version: int, response: Any) -> Any:
    """Return a response in which the error codes that the client's version of the API does not know are replaced by
    codes that it knows.
    """
    if version >= 11 or api_key not in APIS_WITH_NEWER_ERRORS:
        return response
    return _map_errors(api_key, version, response)


@cache
def _error_fields(message: Any) -> tuple[tuple[str, bool], ...]:
    """List those fields of a message that hold an error code, or an array of structures that contain error codes.

    Returns:
        A pair for each field: its name, and whether it is an array.
    """
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
