"""The table of the APIs that the broker serves. Each entry comes from the module of its API.

Each API has a module of `broker.apis` whose name is the API's name in lower case, such as `create_topics`. The module
has the declaration of the API under the name `API`, and its handler under the name `handle`.
"""

import importlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

from stablelog.broker.apis import Broker, Context, ServedApi
from stablelog.wire.api import ApiKey

Handler = Callable[[Broker, Any, Context], Awaitable[Any]]


def _module(key: ApiKey) -> ModuleType:
    return importlib.import_module(f"{__package__}.{key.snake_name}")


@cache
def served_apis() -> Mapping[int, ServedApi]:
    """Return the declarations of all APIs, by API key and in the order of the keys. The first call imports the modules
    of the APIs.
    """
    return MappingProxyType({key: _module(key).API for key in ApiKey})


@cache
def handlers() -> Mapping[int, Handler]:
    """Return the handlers of all APIs, by API key. The first call imports the modules of the APIs."""
    return MappingProxyType({key: _module(key).handle for key in ApiKey})
