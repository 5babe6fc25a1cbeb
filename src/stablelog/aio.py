"""The asyncio client's public names: `async with stablelog.aio.connect("localhost:9092") as client`."""

from typing import TYPE_CHECKING, Any

from stablelog.client.aio.client import AsyncClient, connect
from stablelog.client.aio.group_reader import AsyncGroupReader
from stablelog.client.aio.reader import AsyncReader
from stablelog.client.aio.transaction import AsyncTransaction
from stablelog.client.futures import AsyncWriteFuture, AsyncWriteManyFuture

if TYPE_CHECKING:
    from stablelog.client.aio.admin import AsyncAdmin

__all__ = [
    "AsyncAdmin",
    "AsyncClient",
    "AsyncGroupReader",
    "AsyncReader",
    "AsyncTransaction",
    "AsyncWriteFuture",
    "AsyncWriteManyFuture",
    "connect",
]

if not TYPE_CHECKING:  # a type checker knows the names above, and refuses all others

    def __getattr__(name: str) -> Any:
        """Import the class `AsyncAdmin` when a program first uses its name, because the modules of its requests take
        long to import.
        """
        if name != "AsyncAdmin":
            raise AttributeError(f"module 'stablelog.aio' has no attribute {name!r}")
        from stablelog.client.aio.admin import AsyncAdmin

        return AsyncAdmin
