"""The data directory that a restore makes: it is written, opened by the code of the broker, verified, and released for
use by brokers.

The file `restoring` is written first and removed last. While it is there, every broker refuses the directory. A restore
that finds this file removes what an interrupted restore has left, and starts again.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from stablelog.broker.broker import Broker
from stablelog.broker.settings.config import BrokerConfig
from stablelog.commit_order.verify import verify_view
from stablelog.data_directory.incomplete_restore import RESTORING_FILE, encode_restoring, read_restoring
from stablelog.data_directory.names import partition_directories
from stablelog.env.disk import Disk
from stablelog.env.local_disk import LocalDisk
from stablelog.env.lock import LOCK_FILE, DirectoryLock
from stablelog.errors import DamageError, UsageError
from stablelog.log.verify import FileFinding, verify_directory
from stablelog.ops.restore_plan import RestorePlan
from stablelog.ops.verify import expectations, verify_data_directory
from stablelog.types import TopicPartition

Progress = Callable[[str, int, int], None]

# The settings of the broker that opens the directory. It deletes nothing, because nobody has told its real settings.
SETTINGS: Final = {
    "stablelog.disk.reserve.bytes": "0",
    "stablelog.scrub.bytes.per.second": "0",
    "log.retention.ms": "-1",
    "offsets.retention.minutes": str(2**31 - 1),
    "transactional.id.expiration.ms": str(2**31 - 1),
}
NAMED_MAX: Final = 3  # how many findings an error message names


class Opened(NamedTuple):
    """What a broker has found in the restored directory.

    Attributes:
        next_offsets: the offset that the next record of each partition gets.
        committed: the committed offsets of each consumer group.
        commit_sequences: the commit sequence (a commit's number in the order of commits) that the next commit gets, by
            transaction group, the topics whose commits have one order.
    """

    next_offsets: dict[TopicPartition, int]
    committed: dict[str, dict[TopicPartition, int]]
    commit_sequences: dict[str, int]


class RestoredDirectory:
    """The data directory of a restore, locked against other restores until the end of a `with` block.

    Args:
        disk: the disk of the directory.
        path: the data directory.

    Attributes:
        void: the nonces (random ids) of interrupted restores into this directory. The manifests (lists of segments in
            the store) with these nonces are ignored.

    Raises:
        UsageError: the directory has files that no interrupted restore has left; nothing was changed.
        UnavailableError: another restore writes to the directory.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        names = disk.list_dir(path) if disk.is_dir(path) else []
        if (names and RESTORING_FILE not in names) or (disk.exists(path) and not disk.is_dir(path)):
            raise UsageError(
                f"{path} is not empty: a restore needs a new directory, so name a directory that does not "
                "exist, or an empty one"
            )
        self.void = read_restoring(disk, path)
        self._lock: DirectoryLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()

    def write(self, plan: RestorePlan, progress: Progress) -> None:
        """Write the files of a restore's plan, after removing all other files. All files are durable on return.

        Args:
            plan: the content of the directory.
            progress: called with (the present step, items done, items in all).

        Raises:
            DiskError: a file cannot be written or removed.
        """
        disk = self._disk
        disk.make_dir(self._path)
        if not disk.exists(self._path / RESTORING_FILE):
            disk.write_atomic(self._path / RESTORING_FILE, b"")
        if self._lock is None and isinstance(disk, LocalDisk):
            self._lock = DirectoryLock(self._path)
        self._remove_all()
        for number, (name, files) in enumerate(plan.partitions.items()):
            progress("writing partitions", number, len(plan.partitions))
            disk.make_dir(self._path / name)
            for file, content in files.items():
                disk.write_atomic(self._path / name / file, content)
        for name, content in plan.files.items():
            disk.write_atomic(self._path / name, content)
        disk.sync_dir(self._path)

    def _remove_all(self) -> None:
        for name in self._disk.list_dir(self._path):
            if name in (RESTORING_FILE, LOCK_FILE):
                continue
            if self._disk.is_dir(self._path / name):
                self._disk.remove_dir(self._path / name)
            else:
                self._disk.remove(self._path / name)
        self._disk.sync_dir(self._path)

    def open(self, now_ms: int) -> Opened:
        """Start a broker on the directory. It recovers all logs, and writes the missing markers of transactions whose
        commit or abort is decided. Then stop the broker, and verify all files.

        Raises:
            DamageError: a partition cannot be opened, recovery has cut off a part of a log, or a file contradicts
                another one.
        """
        opened = asyncio.run(self._open_and_stop(now_ms))
        findings = [f"{one.path}: {one.message}" for one in self._findings()]
        if findings:
            raise self._unusable(findings)
        return opened

    async def _open_and_stop(self, now_ms: int) -> Opened:
        failures: list[BaseException] = []
        broker = Broker(
            BrokerConfig(SETTINGS),
            self._path,
            disk=self._disk,
            clock=_StoppedClock(now_ms),
            on_failure=failures.append,
            is_restoring=True,
        )
        try:
            await broker.open_partitions()
            partitions = {(one.topic, one.index): one for one in broker.partitions}
            faults = [
                f"{topic.name}-{index}: {why}"
                for topic in broker.topics
                for index, why in broker.partitions.offline_in(topic).items()
            ]
            faults += [
                f"{one.topic}-{one.index}: recovery has cut off {cut}"
                for one in partitions.values()
                for cut in one.removed_tails
            ]
            table = broker.groups.coordinator.table
            opened = Opened(
                {at: one.end_offset for at, one in partitions.items()},
                {
                    group: {at: known.value.offset for at, known in table.offsets.committed(group).items()}
                    for group in table.groups
                },
                {one.name: one.coordinator.table.sequences.last + 1 for one in broker.transactions},
            )
        finally:
            await broker.stop()
        faults += [str(one) for one in failures]
        if faults:
            raise self._unusable(faults)
        return opened

    def _findings(self) -> Iterator[FileFinding]:
        yield from verify_data_directory(self._disk, self._path)
        expected = expectations(self._disk, self._path)
        for partition in partition_directories(self._disk, self._path):
            known = expected[partition]
            yield from verify_directory(
                self._disk,
                partition,
                recovery_point=known.recovery_point,
                gapless_epoch=known.gapless_epoch,
            )
            yield from verify_view(self._disk, partition)

    def _unusable(self, faults: list[str]) -> DamageError:
        more = f", and {len(faults) - NAMED_MAX} more" if len(faults) > NAMED_MAX else ""
        return DamageError(
            f"{self._path} was restored, and a broker cannot use it: {'; '.join(faults[:NAMED_MAX])}{more}. Nothing was "
            "published, and no broker accepts the directory"
        )

    def record_nonce(self, nonce: bytes) -> None:
        """Record the nonce (random id) of this restore in the directory. The caller does this before it publishes its
        first manifest (the list of a partition's segments in the store). If this restore is interrupted, a later one
        recognises its manifests by the nonce. Durable on return. Raises DiskError.
        """
        self._disk.write_atomic(self._path / RESTORING_FILE, encode_restoring({*self.void, nonce}))

    def release(self) -> None:
        """Allow brokers to use the directory, by removing the file `restoring`. The removal is durable on return.
        Raises DiskError.
        """
        self._disk.remove(self._path / RESTORING_FILE)
        self._disk.sync_dir(self._path)


class _StoppedClock:
    """A clock that stands still, so that nothing expires in the broker that opens the directory."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    wall_ms = now_ms

    def continue_at(self, now_ms: int) -> None:
        self._now_ms = now_ms
