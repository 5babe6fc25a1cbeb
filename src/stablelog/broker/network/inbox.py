"""The inbox of a connection: the buffer into which small requests, and the beginnings of large ones, are received.

A connection has a buffer only while bytes of an incomplete request are in it, or while bytes are being received. Most
connections are idle most of the time, so a broker with thousands of connections needs few buffers.
"""

from typing import Final

INBOX_SIZE: Final = 64 << 10  # The size of each buffer, in bytes.
KEPT_COUNT: Final = 16  # The number of unused buffers that are kept.
NO_BUFFER: Final = memoryview(b"")


class Inboxes:
    """The buffers of all inboxes of a broker that are not in use."""

    def __init__(self) -> None:
        self._kept: list[memoryview] = []

    def __len__(self) -> int:
        """The number of buffers that are kept for later requests."""
        return len(self._kept)

    def take(self) -> memoryview:
        """Return a buffer of INBOX_SIZE bytes. Its content is arbitrary."""
        return self._kept.pop() if self._kept else memoryview(bytearray(INBOX_SIZE))

    def give_back(self, buffer: memoryview) -> None:
        """Keep a buffer for another connection. The caller must not use the buffer any more."""
        if len(self._kept) < KEPT_COUNT:
            self._kept.append(buffer)


class Inbox:
    """The inbox of one connection.

    Args:
        inboxes: has the buffers that are not in use.

    Attributes:
        buffer: the buffer; empty while the inbox has none.
        filled: the number of bytes at the beginning of the buffer that have arrived and are not processed.
    """

    __slots__ = ("_inboxes", "buffer", "filled")

    def __init__(self, inboxes: Inboxes) -> None:
        self._inboxes = inboxes
        self.buffer = NO_BUFFER
        self.filled = 0

    def room(self) -> memoryview:
        """Return the part of the buffer into which the next bytes are received."""
        if not self.buffer:
            self.buffer = self._inboxes.take()
        return self.buffer[self.filled :]

    def drop(self, size: int) -> None:
        """Remove bytes from the beginning. An inbox that becomes empty gives its buffer back."""
        rest = self.filled - size
        assert rest >= 0
        if rest:
            self.buffer[:rest] = self.buffer[size : self.filled]
            self.filled = rest
        else:
            self.clear()

    def clear(self) -> None:
        """Remove all bytes, and give the buffer back."""
        self.filled = 0
        if self.buffer:
            self._inboxes.give_back(self.buffer)
            self.buffer = NO_BUFFER
