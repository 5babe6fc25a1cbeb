"""The asyncio client's public names: `async with stablelog.aio.connect("localhost:9092") as client`."""

from stablelog.client.aio import AsyncClient, AsyncTransaction, connect

__all__ = ["AsyncClient", "AsyncTransaction", "connect"]
