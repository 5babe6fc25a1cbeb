"""The API of a request, by the first bytes of its frame."""

import struct
from typing import Final

from stablelog.env.disk import Buffer
from stablelog.wire.api import APIS, Api, ApiKey

API_KEY: Final = struct.Struct(">h")
REQUEST_SIZE_MIN: Final = 8  # api key, version and correlation id
# Stands for the API of a request whose API key is unknown; the router refuses the request.
NO_API: Final = Api(0, -1)


def api_of(frame: Buffer) -> Api:
    """The API of a request. A message of a SASL mechanism without a request header may be shorter than an API key."""
    return APIS.get(API_KEY.unpack_from(frame)[0], NO_API) if len(frame) >= API_KEY.size else NO_API


def name_of(frame: Buffer) -> str:
    """The name of a request, for the log."""
    api_key = API_KEY.unpack_from(frame)[0] if len(frame) >= API_KEY.size else -1
    return ApiKey(api_key).snake_name if api_key in APIS else "connection"
