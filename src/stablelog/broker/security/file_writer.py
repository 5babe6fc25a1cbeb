"""Writes a noted file that is changed while the broker runs, in a thread."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

from stablelog.broker.directory.noted_file import NotedFile
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.loop.tasks import in_thread_to_its_end
from stablelog.errors import RefusedError

Content = TypeVar("Content")


class FileWriter(Generic[Content]):
    """The writer of one file. The caller makes its changes one after another.

    A thread writes without the reserve, which only the event loop may use. If the disk is full, the event loop writes.

    Args:
        file_with: returns the file with a reserve, which frees disk space if the disk is full, or without one.
        reserve: the reserve.
        threads: write the file.
    """

    def __init__(
        self,
        file_with: Callable[[DiskReserve | None], NotedFile[Content]],
        reserve: DiskReserve,
        threads: Executor,
    ) -> None:
        self._file = file_with(None)
        self._reserved_file = file_with(reserve)
        self._threads = threads
        self.load = self._reserved_file.load

    def note(self) -> None:
        """Record in `meta.properties` that the file exists. This is done on the event loop, because `meta.properties` must
        not be changed in a thread.

        Raises:
            RefusedError: the disk refused the write.
        """
        self._reserved_file.note()

    async def store(self, content: bytes) -> None:
        """Replace the file. Durable on return.

        Raises:
            RefusedError: the disk refused the write. The file holds either the new content or the old one.
        """
        self.note()
        try:
            await in_thread_to_its_end(self._threads, self._file.store, content)
        except RefusedError:
            self._reserved_file.store(content)
