"""Makes a data directory from an object store alone, after the loss of the disk.

1. Everything in the store is read and checked, and the directory is written.
2. The code of the broker opens and recovers the directory, and all its files are verified. Until here the store has not
   changed, and the lost broker, if it still runs, can continue.
3. The restore takes over the chain of manifests of each partition (lists of its segments in the store, each of which
   names the one before), so that the lost broker cannot publish any more. If it has published something since step 1,
   steps 1 and 2 are repeated.
4. The restore publishes its own manifests, and brokers may use the directory.

A restore may be killed at any step. The same command, run again, gives the result of an undisturbed restore
(`restored_directory`).

Source: docs/decisions/0026-restore.md.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.data_directory.settings_file import Dynamic, encode_settings
from stablelog.env.disk import Disk
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import ObjectMissingError, UsageError
from stablelog.ops.restore_plan import RestorePlan, make_plan
from stablelog.ops.restore_report import GroupAhead, Report
from stablelog.ops.restored_directory import Opened, RestoredDirectory
from stablelog.ops.stored_cluster import all_partitions, read_commit_logs, read_settings, read_topics
from stablelog.tier.chain import Chain, same_payload
from stablelog.tier.names import RemotePartition
from stablelog.tier.prefix import Prefix

Progress = Callable[[str, int, int], None]


class _State(NamedTuple):
    """The state of the store that a restore depends on. A broker that still runs may change it.

    Attributes:
        payloads: the bytes of the last manifest (the list of the segments in the store) of each partition; None if
            there is none.
        settings: the dynamic settings of the broker.
    """

    payloads: Mapping[RemotePartition, bytes | None]
    settings: Dynamic


def restore(
    store: ObjectStore, disk: Disk, directory: Path, now_ms: int, progress: Progress = lambda *_: None
) -> Report:
    """Make a data directory from an object store.

    Args:
        store: the object store at the prefix under which the lost broker has kept its objects.
        disk: the disk of the directory.
        directory: the data directory. It must be missing, empty, or the rest of an interrupted restore.
        now_ms: the time of the wall clock, in ms since 1970.
        progress: called with (the present step, items done, items in all).

    Returns:
        The report: what was found in the store, and what is lost.

    Raises:
        UsageError: the directory is not empty, or no cluster has used the store; nothing was written.
        StoreError: the store does not answer.
        UnknownFormatError: a later release has written an object; nothing was written to the directory.
        DamageError: an object is damaged or missing; nothing was written to the directory. Or a broker cannot use the
            directory.
        DiskError: the disk refuses a write. The directory is incomplete, and a broker refuses to use it.
    """
    with RestoredDirectory(disk, directory) as target:
        prefix = Prefix(store)
        try:
            cluster_id = prefix.cluster_id()
        except ObjectMissingError:
            raise UsageError(f"{store.url} has no object of a cluster: check the URL") from None
        return _Restore(prefix, cluster_id, target, now_ms, progress).run()


class _Restore:
    def __init__(
        self, prefix: Prefix, cluster_id: str, target: RestoredDirectory, now_ms: int, progress: Progress
    ) -> None:
        self._prefix = prefix
        self._target = target
        self._cluster_id = cluster_id
        self._storage = RemoteStorage(prefix.store, cluster_id)
        self._now_ms = now_ms
        self._progress = progress
        self._chains: dict[RemotePartition, Chain] = {}

    def run(self) -> Report:
        """Restore the directory, and return the report."""
        void = self._target.void
        payloads = {one: self._prefix.last_payload(one, void) for one in all_partitions(self._prefix)}
        state = _State(payloads, read_settings(self._prefix))
        plan, opened = self._write_and_open(state)
        taken = self._take_over_all()
        if taken != state:
            plan, opened = self._write_and_open(taken)
        self._publish(plan, taken.settings)
        self._target.release()
        return _report(plan, opened)

    def _write_and_open(self, state: _State) -> tuple[RestorePlan, Opened]:
        topics = read_topics(self._prefix, self._cluster_id, state.payloads.get)
        logs = read_commit_logs(topics)
        plan = make_plan(topics, self._cluster_id, logs, state.settings, self._now_ms)
        self._target.write(plan, self._progress)
        self._progress("opening and verifying the directory", 0, 1)
        return plan, self._target.open(self._now_ms)

    def _take_over_all(self) -> _State:
        """Take over the chain of manifests of each partition (the lists of its segments in the store), so that no other
        broker can publish there any more. Return the state of the store after this.
        """
        self._storage.take_epoch()
        partitions = all_partitions(self._prefix)
        payloads: dict[RemotePartition, bytes | None] = {}
        for number, partition in enumerate(partitions):
            self._progress("taking over the manifests", number, len(partitions))
            payloads[partition] = self._take_over(partition)
        return _State(payloads, read_settings(self._prefix))

    def _take_over(self, partition: RemotePartition) -> bytes | None:
        chain = self._chains[partition] = self._storage.chain(partition)
        return self._storage.take_over(chain, same_payload, self._target.void)

    def _publish(self, plan: RestorePlan, settings: Dynamic) -> None:
        self._target.record_nonce(self._storage.nonce)
        self._storage.publish_settings(encode_settings(*settings))
        for number, (partition, payload) in enumerate(plan.manifests.items()):
            self._progress("publishing manifests", number, len(plan.manifests))
            if partition not in self._chains:
                # The store has other partitions of the topic, and nothing of this one.
                self._take_over(partition)
            self._prefix.run_steps(self._chains[partition].publish(payload))


def _report(plan: RestorePlan, opened: Opened) -> Report:
    """Return the report of a restore, completed by what a broker has found in the restored directory (`opened`)."""
    ranges = [
        one
        if one.next_offset is None
        else one._replace(next_offset=opened.next_offsets[one.topic, one.partition])
        for one in plan.report.ranges
    ]
    lost_from = {(one.topic, one.partition): one.lost_from for one in ranges}
    groups = [
        GroupAhead(group, *at, offset, lost_from[at])
        for group, committed in opened.committed.items()
        for at, offset in committed.items()
        if at in lost_from and offset > lost_from[at]
    ]
    return plan.report._replace(
        ranges=ranges, groups=sorted(groups), commit_sequences=opened.commit_sequences
    )
