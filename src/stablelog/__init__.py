"""stablelog: a transactional log in Python that every Kafka client can use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablelog import aio, spark
    from stablelog.client.native import connect
    from stablelog.embedded import EmbeddedBroker, serve

    __version__: str

__all__ = ["EmbeddedBroker", "__version__", "aio", "connect", "serve", "spark"]


_PLACES = {
    "EmbeddedBroker": "stablelog.embedded",
    "serve": "stablelog.embedded",
    "connect": "stablelog.client.native",
    "aio": "stablelog.aio",
    "spark": "stablelog.spark",
}


def __getattr__(name: str) -> Any:
    """Import a public name when a program first uses it, so that `import stablelog` is fast."""
    if name == "__version__":
        from importlib.metadata import version

        return version("stablelog")
    if name not in _PLACES:
        raise AttributeError(f"module 'stablelog' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_PLACES[name])
    return module if module.__name__ == f"stablelog.{name}" else getattr(module, name)
