"""A data directory in use by this broker: its lock, the ids of its cluster and node, and the file that marks a clean
stop.
"""

import base64
import logging
import uuid
from pathlib import Path

from stablelog.broker.directory.broker_time import BrokerTime
from stablelog.broker.settings.config import BrokerConfig
from stablelog.data_directory.catalog import Catalog, read_catalog
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN, CLEAN_SHUTDOWN_FILE, was_stopped_cleanly
from stablelog.data_directory.foreign_directory import refuse_foreign_directory
from stablelog.data_directory.formats import check_formats
from stablelog.data_directory.incomplete_restore import check_is_restored
from stablelog.data_directory.meta_properties import META_FILE, encode_meta, read_meta
from stablelog.data_directory.registered_file import REGISTERED_FILES
from stablelog.env.clock import Clock
from stablelog.env.disk import Disk, FileWriter
from stablelog.env.local_disk import LocalDisk
from stablelog.env.lock import DirectoryLock
from stablelog.errors import DiskError, UsageError

log = logging.getLogger(__name__)


class LockedDirectory:
    """A data directory that this broker has locked. It is created if it does not exist.

    Args:
        writer: writes the directory's small files: the disk, or the disk reserve (space that the broker keeps for a
            full disk), which can write also when the disk is full.
        clock: the broker's clock. Its broker time, by which durations are measured, continues that of the last broker
            that used the directory.
        is_restoring: whether the caller is a restore from an object store, which has created and locked the directory
            already.

    Attributes:
        path: the path of the directory.
        cluster_id: the id of the cluster that the directory belongs to; a new id for a new directory.
        node_id: the id of the broker that the directory belongs to.
        time: keeps broker time in a file of the directory, by which it continues at the next start.
        is_clean: whether the last broker that used the directory has stopped cleanly, so that its logs need no
            recovery.

    Raises:
        UnavailableError: another broker uses the directory.
        UnknownFormatError: a later release has written to the directory. Nothing was changed.
        DamageError: the list of topics is damaged; or `meta.properties` has another cluster id than the list of topics,
            or a node id that is not a number.
        UsageError: the directory belongs to another node, is an incomplete restore, or has files but none of a broker.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        config: BrokerConfig,
        writer: FileWriter,
        clock: Clock,
        *,
        is_restoring: bool = False,
    ) -> None:
        self.path = path
        self._disk = disk
        self._writer = writer
        if not is_restoring:
            check_is_restored(disk, path)
        refuse_foreign_directory(disk, path)
        disk.make_dir(path)
        # Lock only a directory on a real disk: no other process can use the simulated disk of a test.
        self._lock = DirectoryLock(path) if isinstance(disk, LocalDisk) and not is_restoring else None
        try:
            check_formats(disk, path)
            catalog = read_catalog(disk, path)
            self.cluster_id, self.node_id, self._is_meta_whole = self._read_meta(catalog, config)
            self.is_clean = was_stopped_cleanly(disk, path / CLEAN_SHUTDOWN_FILE)
            self.time = BrokerTime(clock, disk, path)
            self.time.resume()
        except BaseException:
            self.release()
            raise

    def _read_meta(self, catalog: Catalog | None, config: BrokerConfig) -> tuple[str, int, bool]:
        """Read the cluster id and the node id of the data directory from the file `meta.properties`. An id that the
        file lacks is taken from the list of topics or from the configuration, or is new.

        Returns:
            The cluster id, the node id, and whether the file is whole. If it is not, the caller writes it again.

        Raises:
            UsageError: the file and the configuration have different node ids.
        """
        path = self.path / META_FILE
        meta = read_meta(self._disk, self.path, catalog)
        if meta.fault is not None and (catalog is not None or self._disk.exists(path)):
            log.warning(
                "the broker writes the file %s again; the reason is that the file %s", path, meta.fault
            )
        cluster_id = (catalog.cluster_id if catalog else "") or meta.cluster_id or _new_cluster_id()
        node_id: int = config["node.id"]
        if meta.node_id not in (None, node_id) and "node.id" in config.static:
            raise UsageError(
                f"{path} has node.id={meta.node_id}, and the configuration has node.id={node_id}: change the configuration, or use "
                "another data directory"
            )
        return cluster_id, node_id if meta.node_id is None else meta.node_id, meta.fault is None

    def begin(self) -> None:
        """Begin to use the directory. Record broker time (a clock for durations, which never goes back) in its file.
        Remove the file that marks a clean stop, so that after a crash the next start recovers the logs.

        Durable on return.
        """
        self.time.record()
        if not self._is_meta_whole:
            noted = [kind.meta_line for kind in REGISTERED_FILES if self._disk.exists(self.path / kind.name)]
            content = encode_meta(self.cluster_id, self.node_id, noted)
            self._writer.write_atomic(self.path / META_FILE, content)
        self._disk.remove(self.path / CLEAN_SHUTDOWN_FILE)
        self._disk.sync_dir(self.path)

    def mark_clean(self) -> None:
        """Write the file that marks a clean stop, so that the next start need not recover the logs.

        A disk error is logged.
        """
        self.time.record()
        try:
            self._writer.write_atomic(self.path / CLEAN_SHUTDOWN_FILE, CLEAN_SHUTDOWN)
        except DiskError as error:
            log.error(
                "the clean stop cannot be recorded, so the next start recovers all logs as after a crash: %s",
                error,
            )

    def release(self) -> None:
        """Release the lock of the data directory."""
        if self._lock is not None:
            self._lock.release()


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
