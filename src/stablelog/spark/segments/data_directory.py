"""Reading of the files that describe a data directory and its partitions' directories: topics, broker, log starts, and
the lock.

This module never writes.
"""

import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from stablelog.errors import DamageError, NewerFormatError, UnavailableError, UsageError
from stablelog.log.files.kafka_files import (
    LOG_START_CHECKPOINT,
    META_FILE,
    METADATA_FILE,
    Offsets,
    decode_meta,
    decode_offset_checkpoint,
    decode_partition_metadata,
    node_id_in,
)
from stablelog.log.files.names import COMMIT_SUFFIXES
from stablelog.spark.segments.segment_file import read_or_nothing

log = logging.getLogger(__name__)
LOCK_FILE: Final = ".lock"


def topic_id_of(directory: Path) -> str:
    """Return the id of the topic of a partition's directory; empty if no file contains it."""
    path = directory / METADATA_FILE
    with contextlib.suppress(UnavailableError, DamageError, NewerFormatError):
        return decode_partition_metadata(read_or_nothing(path), path).hex
    return ""


def is_directory_of(directory: Path | None, topic_id: str) -> bool:
    """Whether a directory belongs to a partition of this topic, and can be read. An empty `topic_id` stands for any
    topic.
    """
    if directory is None or not os.access(directory, os.R_OK | os.X_OK):
        return False
    return not topic_id or topic_id_of(directory) == topic_id


def node_id_of(data: Path) -> int | None:
    """Return the id of the broker of a data directory; None if no file contains it."""
    with contextlib.suppress(UnavailableError):
        return node_id_in(decode_meta(read_or_nothing(data / META_FILE)))
    return None


def is_commit_ordered(directory: Path) -> bool:
    """Whether read-committed readers of a partition get its records in commit order, and not in the order of its
    files.
    """
    return any(name.endswith(COMMIT_SUFFIXES) for name in os.listdir(directory))


def log_starts(data: Path) -> Offsets:
    """Return the log start offset of each partition, from the checkpoint file of the data directory.

    Raises:
        NewerFormatError: a later release has written the file.
        DamageError: the file is damaged.
        UnavailableError: the file cannot be read.
    """
    path = data / LOG_START_CHECKPOINT
    return decode_offset_checkpoint(read_or_nothing(path), path)


def check_is_closed(data: Path) -> None:
    """Check that no broker has a data directory open. If one has, its files may contain records that are not durable
    yet.

    stablelog locks the file `.lock` by `flock`, Apache Kafka by `lockf`. The lock of a broker on another machine may
    not be visible.

    Raises:
        UsageError: a broker has the directory open.
        UnavailableError: the lock cannot be read.
    """
    path = data / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return  # The directory has no lock file, because it is a copy of partitions.
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}") from error
    try:
        for lock in (fcntl.flock, fcntl.lockf):
            lock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"{data} is in use by a running broker, and only that broker knows up to where its records are durable: "
            "give its address as kafka.bootstrap.servers in place of path, or stop it"
        ) from error
    except OSError as error:
        log.warning(
            "%s cannot be locked (%s), so it is unknown whether a broker has it open", path, error.strerror
        )
    finally:
        os.close(descriptor)
