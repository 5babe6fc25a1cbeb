"""Reuse of the memory into which responses copy small batches.

The first write to a new page of memory costs more than the copies into it. Therefore the memory of a few responses is
kept and used again. A buffer is used again only when no memoryview of it exists: until then, a `BytesIO` refuses
writes. So no caller has to report that a response was sent.
"""

from io import BytesIO

KEPT_COUNT = 4  # how many responses' buffers are kept, of about a megabyte each


class CopyBuffers:
    """Pool of buffers for responses. The assembler of a response takes a buffer, and returns it when the response is
    assembled. Views of the buffer may exist after that.
    """

    def __init__(self) -> None:
        self._kept: list[BytesIO] = []

    def take(self) -> BytesIO:
        """Return a buffer to which no memoryview refers any more. The caller writes from the beginning of the buffer."""
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

    def give_back(self, memory: BytesIO) -> None:
        """Keep a buffer for a later response. The buffer is used again only when no view of it exists."""
        if len(self._kept) < KEPT_COUNT:
            self._kept.append(memory)


COPY_BUFFERS = CopyBuffers()
