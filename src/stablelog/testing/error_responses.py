"""Responses that report an error for everything that a request asks for, as if a broker had refused it.

A response is built from the fields of its message class. Each field for an error code gets the error code that the test
has chosen. For each entry of the request, such as a topic, the response has an entry. All other fields are copied from
the request, or have the default of the schema.
"""

import dataclasses
import typing
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial._implicit_defaults import get_implicit_default

from stablelog.errors import UsageError, did_you_mean
from stablelog.wire.api import Api, ApiKey
from stablelog.wire.fetch import FetchedPartition, FetchedTopic, FetchRequest, encode_fetch_response
from stablelog.wire.messages import PREFIX, decode_request, encode_response, message_class
from stablelog.wire.produce import ProducedPartition, ProducedTopic, ProduceRequest, encode_produce_response
from stablelog.wire.versions import entity_in

# The responses of these APIs have no place for an error of the whole request in all versions, or clients need their
# other fields.
WITHOUT_ERRORS: Final = frozenset(
    {ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_CLUSTER}
)
# An entry of a request that is not a message, such as a partition's index, has one of these names in the response.
NAMES_OF_PLAIN_ENTRIES: Final = ("partition_index", "name", "key", "group_id", "transactional_id")
NO_SESSION: Final = 0
FULL_FETCH_EPOCHS: Final = (0, -1)


def error_named(name: str) -> ErrorCode:
    """Return the error code with this name in Kafka's protocol, such as "NOT_LEADER_OR_FOLLOWER".

    Raises:
        UsageError: there is no error of this name; the message proposes the most similar one.
    """
    known = {code.name.upper(): code for code in ErrorCode if code is not ErrorCode.none}
    if name.upper() not in known:
        raise UsageError(f"Kafka's protocol has no error {name!r}{did_you_mean(name, known)}")
    return known[name.upper()]


def error_response(frame: bytes, code: ErrorCode) -> bytes | None:
    """Return a response that reports an error for everything in the request, without the length prefix.

    Args:
        frame: the request, without the length prefix.
        code: the error code that each topic, partition or other entry of the response gets.

    Returns:
        The response. None if the client expects no response to this request, because it is a Produce request with
        acks=0.
    """
    api_key, version, correlation_id = PREFIX.unpack_from(frame)
    api = Api(api_key, version, version)  # request and response stay in the version of the client
    _, request = decode_request(api, version, frame)
    if api_key == ApiKey.PRODUCE:
        pieces = _produce_response(version, correlation_id, request, code)
    elif api_key == ApiKey.FETCH:
        pieces = _fetch_response(version, correlation_id, request, code)
    else:
        response_class = message_class(api_key, version, "response")
        pieces = encode_response(api, version, correlation_id, _filled(response_class, request, code))
    return None if pieces is None else b"".join(pieces)


def _produce_response(version: int, correlation_id: int, request: ProduceRequest, code: ErrorCode) -> Any:
    if request.acks == 0:
        return None
    topics = [
        ProducedTopic(topic.name, [ProducedPartition(one.index, code) for one in topic.partitions])
        for topic in request.topics
    ]
    return encode_produce_response(version, correlation_id, topics)


def _fetch_response(version: int, correlation_id: int, request: FetchRequest, code: ErrorCode) -> Any:
    if request.session_epoch not in FULL_FETCH_EPOCHS:
        # The request names only some of the session's partitions, so the error is that of the whole request.
        return encode_fetch_response(version, correlation_id, code, NO_SESSION, ())
    topics = [
        FetchedTopic(
            topic.name or "",
            topic.topic_id,
            [FetchedPartition(one.partition, code) for one in topic.partitions],
        )
        for topic in request.topics
    ]
    return encode_fetch_response(version, correlation_id, ErrorCode.none, NO_SESSION, topics)


def _has_errors(message: type) -> bool:
    return any(
        field.type is ErrorCode or (entity_in(field.type) is not None and _has_errors(_entity(field.type)))
        for field in dataclasses.fields(message)
    )


def _entity(kind: Any) -> type:
    entity = entity_in(kind)
    assert entity is not None
    return entity


def _filled(response_class: type, request: Any, code: ErrorCode) -> Any:
    """Return an object of the class `response_class`, a whole response or one entry of a response. It reports the error
    `code` for the part of the request that it answers (`request`).
    """
    content: dict[str, Any] = {}
    for field in dataclasses.fields(response_class):
        entity = entity_in(field.type)
        if field.type is ErrorCode:
            content[field.name] = code
        elif entity is not None and type(None) in typing.get_args(field.type):
            content[field.name] = None  # Not a list of entries, such as the cursor of the next page.
        elif entity is not None:
            entries = _entries(request, field.name) if _has_errors(entity) else ()
            content[field.name] = tuple(_filled(entity, entry, code) for entry in entries)
        elif not dataclasses.is_dataclass(request) and field.name in NAMES_OF_PLAIN_ENTRIES:
            content[field.name] = request
        elif typing.get_origin(field.type) is not tuple and hasattr(request, field.name):
            content[field.name] = getattr(request, field.name)
        elif field.default is dataclasses.MISSING:
            content[field.name] = () if typing.get_origin(field.type) is tuple else _default(field.type)
    return response_class(**content)


def _default(kind: Any) -> Any:
    return None if type(None) in typing.get_args(kind) else get_implicit_default(kind)


def _entries(request: Any, name: str) -> tuple[Any, ...]:
    """Return the entries of a request, such as its topics, for which the response has one entry each.

    Args:
        request: the request; or an entry of it that has entries itself, as a topic has partitions.
        name: the name of the response's field with the entries.

    Returns:
        The entries of the request's field of the same name. If the request has no such field, the entries of its first
        field that has any; an empty tuple if no field has.
    """
    arrays = {
        field.name: getattr(request, field.name) or ()
        for field in dataclasses.fields(request)
        if isinstance(getattr(request, field.name), tuple)
    }
    return arrays[name] if name in arrays else next(iter(arrays.values()), ())
