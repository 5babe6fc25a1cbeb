"""A simulated network link between an S3 server and its clients: all connections together may send a limited number of
bytes a second.
"""

import asyncio
from typing import Final

PIECE_SIZE: Final = 16 << 10  # The bytes of several connections alternate in pieces of this size.


class S3Link:
    """One direction of a simulated network link, which the connections of all clients share.

    Args:
        rate: how many bytes a second all connections together may send; None for no limit. A test may change it.

    Attributes:
        moved_size: how many bytes of bodies have crossed the link.
    """

    def __init__(self, rate: float | None = None) -> None:
        self.rate = rate
        self.moved_size = 0
        self._free_s = 0.0  # The time at which the link is free for the next bytes.

    async def receive(self, reader: asyncio.StreamReader, size: int) -> bytes:
        """Read the body of a request from a connection, no faster than the link allows.

        Raises:
            asyncio.IncompleteReadError: the connection has ended.
        """
        if self.rate is None:
            self.moved_size += size
            return await reader.readexactly(size)
        body = bytearray()
        while len(body) < size:
            body += await reader.readexactly(min(PIECE_SIZE, size - len(body)))
            await self._cross(min(PIECE_SIZE, len(body)))
        return bytes(body)

    async def send(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        """Send the body of a response, no faster than the link allows. Raises ConnectionError if the connection
        breaks.
        """
        if self.rate is None:
            self.moved_size += len(body)
            writer.write(body)
            await writer.drain()
            return
        for at in range(0, len(body), PIECE_SIZE):
            piece = body[at : at + PIECE_SIZE]
            await self._cross(len(piece))
            writer.write(piece)
            await writer.drain()

    async def _cross(self, size: int) -> None:
        now_s = asyncio.get_running_loop().time()
        self.moved_size += size
        if self.rate is not None:
            self._free_s = max(self._free_s, now_s) + size / self.rate
            await asyncio.sleep(self._free_s - now_s)
