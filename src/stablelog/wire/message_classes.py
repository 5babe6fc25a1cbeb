"""The classes of messages by API and version, and the layout of a request's header: what a client needs of the codec.

The module of a version is imported when that version is first used: an import takes up to 10 ms of processor time.
"""

import importlib
import struct
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from stablelog.wire.api import ApiKey

PREFIX = struct.Struct(">hhi")  # The first fields of a request: API key, API version, correlation id.
CLIENT_ID_SIZE = struct.Struct(">h")

# The module of `wire.extension` that has the messages of an API, for stablelog's own APIs.
EXTENSION_MODULES: Final[Mapping[int, str]] = MappingProxyType(
    {
        ApiKey.BEGIN_JOINT: "joint",
        ApiKey.COMMIT_JOINT: "joint",
        ApiKey.ABORT_JOINT: "joint",
        ApiKey.DESCRIBE_CUT: "cut",
        ApiKey.DESCRIBE_COMMITS: "commits",
    }
)


@cache
def message_module(api_key: int, version: int, kind: str) -> Any:
    """Return the module of a message in one version, with the classes of its parts. `kind` is "request" or "response"."""
    extension = EXTENSION_MODULES.get(api_key)
    if extension is not None:
        return importlib.import_module(f"stablelog.wire.extension.{extension}")
    return importlib.import_module(f"kio.schema.{ApiKey(api_key).snake_name}.v{version}.{kind}")


@cache
def message_class(api_key: int, version: int, kind: str) -> Any:
    """Return the class of a request or response in one version. `kind` is "request" or "response"."""
    return getattr(message_module(api_key, version, kind), ApiKey(api_key).message_name + kind.capitalize())


@cache
def oldest_version(api_key: int) -> int:
    """Return the oldest version of an API that the message library has. Kafka has removed the versions before it."""
    if api_key in EXTENSION_MODULES:
        return 0
    import pkgutil  # only for a broker that does not have the newest version

    package = importlib.import_module(f"kio.schema.{ApiKey(api_key).snake_name}")
    return min(int(module.name.removeprefix("v")) for module in pkgutil.iter_modules(package.__path__))


class MessageNamespace:
    """Base class of objects whose attributes are the classes of messages. A `Messages` object changes to this class
    when all its attributes are set, because Python looks up attributes faster in a class without `__getattr__`.
    """


class Messages(MessageNamespace):
    """The classes of an API's messages in one version, and of their parts, as attributes.

    The modules of the request and the response are imported when a class is first used. If both have a class of the
    same name, the attribute is the class of the response.
    """

    def __init__(self, api_key: int, version: int) -> None:
        self._api_key = api_key
        self._version = version

    def __getattr__(self, name: str) -> Any:
        """Import the modules of the request and the response, and return the class of this name."""
        for kind in ("request", "response"):
            vars(self).update(vars(message_module(self._api_key, self._version, kind)))
        # Python looks up the attributes of an object more slowly if its class has `__getattr__`.
        object.__setattr__(self, "__class__", MessageNamespace)
        return getattr(self, name)
