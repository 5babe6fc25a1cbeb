"""Stores a noted file that is changed while the broker runs, in a thread."""

from concurrent.futures import Executor
from typing import TypeVar

from stablelog.broker.loop.tasks import in_thread_to_its_end
from stablelog.data_directory.noted_file import NotedFile
from stablelog.errors import DiskError

Content = TypeVar("Content")


async def store_in_thread(threads: Executor, file: NotedFile[Content], content: bytes) -> None:
    """Replace a file in a thread. Durable on return. The caller makes its changes one after another.

    Only the event loop may use the reserve and change `meta.properties`. So it records there that the file exists, and it
    writes the file itself if the disk refuses the thread.

    Raises:
        RefusedError: the disk refused the write. The file holds either the new content or the old one.
    """
    file.note()
    try:
        await in_thread_to_its_end(threads, file.replace, content)
    except DiskError:
        file.store(content)
