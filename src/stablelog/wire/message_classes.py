"""The classes of messages by API and version, and the layout of a request's header: what a client needs of the codec.

The module of a version is imported when that version is first used.
"""

import importlib
import struct
from functools import cache
from typing import Any

from stablelog.wire.api import APIS, ApiKey

PREFIX = struct.Struct(">hhi")  # The first fields of a request: API key, API version, correlation id.
CLIENT_ID_SIZE = struct.Struct(">h")


@cache
def message_module(api_key: int, version: int, kind: str) -> Any:
    """Return the module of a message in one version, with the classes of its parts. `kind` is "request" or "response"."""
    extension = APIS[api_key].extension
    if extension is not None:
        return importlib.import_module(f"stablelog.wire.extension.{extension}")
    return importlib.import_module(f"kio.schema.{ApiKey(api_key).snake_name}.v{version}.{kind}")


@cache
def message_class(api_key: int, version: int, kind: str) -> Any:
    """Return the class of a whole message in one version. `kind` is "request" or "response"."""
    return getattr(message_module(api_key, version, kind), ApiKey(api_key).message_name + kind.capitalize())
