"""The asyncio client's public names: `async with stablelog.aio.connect("localhost:9092") as client`."""

from stablelog.client.aio.client import AsyncClient, connect
from stablelog.client.aio.group_reader import AsyncGroupReader
from stablelog.client.aio.transaction import AsyncTransaction

__all__ = ["AsyncClient", "AsyncGroupReader", "AsyncTransaction", "connect"]
