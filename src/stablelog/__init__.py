"""stablelog: a transactional log in Python that every Kafka client can use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablelog import aio, spark
    from stablelog.client.native import connect
    from stablelog.embedded import EmbeddedBroker, serve

    __version__: str

__all__ = ["EmbeddedBroker", "__version__", "aio", "connect", "serve", "spark"]


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: `import stablelog` costs next to nothing."""
    if name == "__version__":
        from importlib.metadata import version

        return version("stablelog")
    if name in ("EmbeddedBroker", "serve"):
        from stablelog import embedded

        return getattr(embedded, name)
    if name in ("aio", "spark"):
        from importlib import import_module

        return import_module(f"stablelog.{name}")
    if name == "connect":
        from stablelog.client.native import connect

        return connect
    raise AttributeError(f"module 'stablelog' has no attribute {name!r}")
