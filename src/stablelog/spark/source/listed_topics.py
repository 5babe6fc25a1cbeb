"""Tells which topics in a data directory are commit-ordered: their readers get transactions in the order of their
commits. The source is the broker's list of topics (`cluster.json`).
"""

import contextlib
import os
from pathlib import Path

from stablelog.data_directory.catalog import CATALOG_FILE, ListedTopic, read_catalog
from stablelog.data_directory.names import partition_named
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import UnavailableError
from stablelog.log.files.names import COMMIT_SUFFIXES

_Version = tuple[int, int, int]  # inode, time of the last change in ns, size


class ListedTopics:
    """Cache of the lists of topics that brokers keep in their data directories. A list that has changed is read
    again.
    """

    def __init__(self) -> None:
        self._disk = LocalDisk(read_only=True)
        self._known: dict[Path, tuple[_Version, dict[str, ListedTopic]]] = {}

    def is_commit_ordered(self, directory: Path) -> bool:
        """Return whether a partition is commit-ordered. Read-committed readers of such a partition get its records in
        another order than its files have.

        The list of topics in the data directory records this. A data directory of Apache Kafka has no such list, nor
        has a copy of single partitions: there, a partition counts as commit-ordered if it has the files of a commit
        index, which lists the transactions in the order of their commits.

        Args:
            directory: the directory of the partition.

        Raises:
            UnknownFormatError: a later release has written the list of topics.
            DamageError: the list of topics is damaged.
            UnavailableError: the directory cannot be read.
        """
        partition = partition_named(directory.name)
        topic = None if partition is None else self._topics_in(directory.parent).get(partition[0])
        if topic is not None:
            return topic.is_commit_ordered
        return any(name.endswith(COMMIT_SUFFIXES) for name in self._disk.list_dir(directory))

    def _topics_in(self, data: Path) -> dict[str, ListedTopic]:
        """Return the topics in the list of a data directory, by name; an empty dictionary if the directory has no list,
        or this process cannot read it.
        """
        try:
            found = os.stat(data / CATALOG_FILE)
        except OSError:
            return {}
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        known = self._known.get(data)
        if known is not None and known[0] == version:
            return known[1]
        topics: dict[str, ListedTopic] = {}
        with contextlib.suppress(UnavailableError):
            catalog = read_catalog(self._disk, data)
            topics = {} if catalog is None else {topic.name: topic for topic in catalog.topics}
        self._known[data] = version, topics
        return topics
