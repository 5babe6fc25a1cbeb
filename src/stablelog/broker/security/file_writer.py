"""Storing a file of the data directory in a thread, while the broker runs."""

from concurrent.futures import Executor
from typing import TypeVar

from stablelog.broker.loop.threads import in_thread_to_its_end
from stablelog.data_directory.registered_file import RegisteredFile
from stablelog.errors import DiskError

Content = TypeVar("Content")


async def store_in_thread(threads: Executor, file: RegisteredFile[Content], content: bytes) -> None:
    """Replace the content of a file of the data directory, in a thread. The new content is durable on return. The
    caller makes its changes one after another.

    The thread may neither use the disk reserve (a file whose space the broker frees when the disk is full) nor change
    `meta.properties`: only the event loop may. This function therefore first records in `meta.properties` that the file
    exists. If the disk refuses the write of the thread, it writes the file on the event loop, where the reserve can
    free space.

    Raises:
        RefusedError: the disk refused the write. The file has either the new content or the old one.
    """
    file.register()
    try:
        await in_thread_to_its_end(threads, file.replace, content)
    except DiskError:
        file.store(content)
