"""Where are small batches copied together for an answer? In memory that is used again once the answer has been sent.

A page costs more when it is touched for the first time than all that is copied into it. So the memory of a few answers
is kept. Nobody has to say that an answer was sent: a `BytesIO` of which somebody holds a part cannot be written to.
"""

from io import BytesIO

KEPT_COUNT = 4  # answers, of a megabyte or so each


class Copies:
    """The memory of one process's answers. An answer takes one, and gives it back while it is still being read."""

    def __init__(self) -> None:
        self._kept: list[BytesIO] = []

    def take(self) -> BytesIO:
        """Memory of which nobody holds a part, to be written from its beginning."""
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
        """It is not written to any more, until nobody holds a part of it."""
        if len(self._kept) < KEPT_COUNT:
            self._kept.append(memory)


COPIES = Copies()
