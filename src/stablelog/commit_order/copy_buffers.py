"""Reuse of the memory into which fetch responses copy small batches.

The first write to a new page of memory costs more than the copies into it, so the memory of a few responses is kept. A
buffer is used again only when no memoryview of it exists: until then, a `BytesIO` refuses writes. So no caller has to
report that a response was sent.
"""

from io import BytesIO

KEPT_COUNT = 4  # how many responses' buffers are kept, of about a megabyte each


class CopyBuffers:
    """Pool of buffers for fetch responses. A buffer may be returned while views of it still exist."""

    def __init__(self) -> None:
        self._kept: list[BytesIO] = []

    def take_buffer(self) -> BytesIO:
        """Return a buffer that no memoryview refers to, for writes from its beginning on."""
        for _ in range(len(self._kept)):
            memory = self._kept.pop(0)
            try:
                memory.write(b"")
            except BufferError:
                self._kept.append(memory)
            else:
                memory.seek(0)
                return memory
        return BytesIO()

    def return_buffer(self, memory: BytesIO) -> None:
        """Keep a buffer for a later response. `take_buffer` returns it again only when no memoryview of it exists any
        more.
        """
        if len(self._kept) < KEPT_COUNT:
            self._kept.append(memory)


COPY_BUFFERS = CopyBuffers()
