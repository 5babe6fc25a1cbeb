"""The inbox of a connection: the buffer for small requests, and for the beginnings of large ones.

An inbox has a buffer only while bytes are being received, or while it contains bytes of an incomplete request. Most
connections are idle most of the time, so a broker with thousands of connections needs few buffers.
"""

from typing import Final

INBOX_SIZE: Final = 64 << 10  # The size of a buffer, in bytes.
LOGIN_INBOX_SIZE: Final = 4 << 10  # The size of a buffer before the login: any client may have one.
KEPT_COUNT: Final = 16  # The number of unused buffers that are kept.
NO_BUFFER: Final = memoryview(b"")


class Inboxes:
    """The unused buffers of one size, which the inboxes of all connections share. An inbox is the place of a connection
    where small requests arrive, and takes a buffer only while it needs one.

    Args:
        size: bytes of a buffer.
    """

    def __init__(self, size: int = INBOX_SIZE) -> None:
        self._size = size
        self._kept: list[memoryview] = []

    def __len__(self) -> int:
        """The number of unused buffers that are kept for later requests."""
        return len(self._kept)

    def take_buffer(self) -> memoryview:
        """Return a buffer, kept or new. Its content is arbitrary."""
        return self._kept.pop() if self._kept else memoryview(bytearray(self._size))

    def keep_buffer(self, buffer: memoryview) -> None:
        """Keep a buffer for another connection, unless enough are kept. The caller must not use the buffer any more."""
        if len(self._kept) < KEPT_COUNT:
            self._kept.append(buffer)


class Inbox:
    """The inbox of one connection: the bytes that have arrived of small requests, and of the beginning of a large one.

    Attributes:
        buffer: the buffer; empty while the inbox has none.
        filled: the number of bytes at the beginning of the buffer that have arrived and are not processed yet.
    """

    __slots__ = ("_owner", "buffer", "filled")

    def __init__(self) -> None:
        self._owner: Inboxes | None = None
        self.buffer = NO_BUFFER
        self.filled = 0

    def free_space(self, inboxes: Inboxes) -> memoryview:
        """Return the free part of the buffer, into which the next bytes are received.

        Args:
            inboxes: the unused buffers, from which the inbox takes one if it has none. The buffers for clients that
                have logged in are at least as large as those before the login. If the present buffer is one of before
                the login, it is replaced by one of `inboxes`.
        """
        if self._owner is not inboxes:
            buffer = inboxes.take_buffer()
            buffer[: self.filled] = self.buffer[: self.filled]
            self._return_buffer()
            self._owner, self.buffer = inboxes, buffer
        return self.buffer[self.filled :]

    def drop_bytes(self, size: int) -> None:
        """Remove the first `size` bytes of the inbox, because they are processed. If it is empty then, its buffer
        becomes free for other connections.
        """
        rest = self.filled - size
        assert rest >= 0
        if rest:
            self.buffer[:rest] = self.buffer[size : self.filled]
            self.filled = rest
        else:
            self.clear()

    def clear(self) -> None:
        """Remove all bytes, so that the buffer becomes free for other connections."""
        self.filled = 0
        self._return_buffer()

    def _return_buffer(self) -> None:
        if self._owner is not None:
            self._owner.keep_buffer(self.buffer)
            self._owner, self.buffer = None, NO_BUFFER
