"""The first fields of a request frame: which API the request is for, and whether its client expects no response."""

import struct
from collections.abc import Mapping
from typing import Final

from stablelog.env.disk import Buffer
from stablelog.wire.api import API_KEYS, Api, ApiKey

API_KEY: Final = struct.Struct(">h")
REQUEST_SIZE_MIN: Final = 8  # api key, version and correlation id
TO_CLIENT_ID: Final = struct.Struct(">hhih")  # api key, version, correlation id and the size of the client id
# The first version of Produce with compact fields, and with tagged fields in the header (KIP-482).
FLEXIBLE: Final = 9
# A transactional id that is null, and acks=0. Tagged fields, of which there are none, precede them in flexible versions.
NO_ACKS: Final = b"\xff\xff\0\0"
FLEXIBLE_NO_ACKS: Final = b"\0\0\0\0"
# Stands for the API of a request whose API key is unknown; the router refuses the request.
NO_API: Final = Api(-1, 0, -1)


def request_api(frame: Buffer, apis: Mapping[int, Api]) -> Api:
    """Return the API of a request, out of the APIs that the broker serves; NO_API if the broker does not serve it.

    The result is also NO_API for a frame that is too short for an API key: a SASL message without a request header.
    """
    return apis.get(API_KEY.unpack_from(frame)[0], NO_API) if len(frame) >= API_KEY.size else NO_API


def is_produce(frame: Buffer) -> bool:
    """Return whether a frame is a Produce request."""
    return len(frame) >= API_KEY.size and API_KEY.unpack_from(frame)[0] == ApiKey.PRODUCE


def is_one_way(frame: Buffer) -> bool:
    """Return whether a frame is a Produce request with acks=0, so that its client expects no response.

    Only requests without a transactional id and without tagged fields in the request header are recognised: clients
    send acks=0 only in this form.
    """
    if not is_produce(frame) or len(frame) < TO_CLIENT_ID.size:
        return False
    _, version, _, client_id_size = TO_CLIENT_ID.unpack_from(frame)
    at = TO_CLIENT_ID.size + max(client_id_size, 0)
    return bytes(frame[at : at + len(NO_ACKS)]) == (FLEXIBLE_NO_ACKS if version >= FLEXIBLE else NO_ACKS)


def request_name(frame: Buffer) -> str:
    """Return the name of a request's API for the log, or "connection" if the API is unknown."""
    api_key = API_KEY.unpack_from(frame)[0] if len(frame) >= API_KEY.size else -1
    return ApiKey(api_key).snake_name if api_key in API_KEYS else "connection"
