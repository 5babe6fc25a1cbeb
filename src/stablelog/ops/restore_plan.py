"""The plan of a restore: from what the object store has of the cluster, this module decides what the restored directory
contains. It does no I/O.

Source: docs/decisions/0026-restore.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from stablelog.batch.records import Record, encode_batch
from stablelog.commit_order.first_sequence import FirstSequence, encode_first_sequences
from stablelog.coordinators.log_names import group_of_log, is_coordinator_log
from stablelog.coordinators.transactions.restored_transactions import (
    CommitLog,
    Pair,
    restored_records,
    torn_commits,
)
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.data_directory.catalog import CATALOG_FILE, ListedTopic, encode_catalog
from stablelog.data_directory.meta_properties import META_FILE, encode_meta
from stablelog.data_directory.settings_file import META_LINE, SETTINGS_FILE, Dynamic, encode_settings
from stablelog.data_directory.topic_settings import group_of_topic, order_of
from stablelog.log.files.names import FIRST_SEQUENCE_FILE, LOG
from stablelog.log.files.restored import Restored
from stablelog.log.producer_state.producer import NO_TXN
from stablelog.ops.restore_report import LeftOut, PartitionLoss, Report
from stablelog.ops.stored_cluster import StoredTopic, empty_stored, producers_of
from stablelog.tier.manifest import Manifest, encode_manifest
from stablelog.tier.names import RemotePartition
from stablelog.tier.published import Published
from stablelog.tier.restored_files import (
    OpenPart,
    Stored,
    abort_markers,
    coordinator_log_files,
    gap_end,
    leader_epoch_of,
    lost_ranges,
    topic_files,
)
from stablelog.types import TopicPartition

RECORD_COUNT_MAX: Final = 1_000  # of a batch that the restore appends


@dataclass(slots=True)
class RestorePlan:
    """The content of the restored data directory, and the report.

    Attributes:
        partitions: the contents of the partitions' files, by directory and name.
        files: the contents of the other files, by name.
        manifests: the encoded manifests (lists of a partition's segments in the store) that the restore publishes, by
            partition.
        report: the report of the restore, without what is known only when a broker has opened the restored directory.
    """

    partitions: dict[str, dict[str, bytes]]
    files: dict[str, bytes]
    manifests: dict[RemotePartition, bytes]
    report: Report


def make_plan(
    topics: list[StoredTopic],
    cluster_id: str,
    logs: dict[str, CommitLog],
    settings: Dynamic,
    now_ms: int,
) -> RestorePlan:
    """Decide the content of the restored data directory. Without I/O.

    Args:
        topics: the topics in the store, with all logs of coordinators.
        cluster_id: the id of the cluster.
        logs: the records of the commit logs.
        settings: the dynamic settings of the broker.
        now_ms: the time of the wall clock, in ms since 1970.
    """
    return _Planner(topics, cluster_id, logs, settings, now_ms).plan()


class _Planner:
    def __init__(
        self,
        topics: list[StoredTopic],
        cluster_id: str,
        logs: dict[str, CommitLog],
        settings: Dynamic,
        now_ms: int,
    ) -> None:
        self._settings = settings
        self._topics = {topic.name: topic for topic in topics}
        self._cluster_id = cluster_id
        self._now_ms = now_ms
        self._counts = {
            topic.name: max(topic.published.partition_count, max(topic.partitions) + 1) for topic in topics
        }
        self._stored = {
            (topic.name, index): topic.partitions.get(index)
            or empty_stored(_remote_partition(topic, index), cluster_id)
            for topic in topics
            for index in range(self._counts[topic.name])
        }
        self._tables = {at: producers_of(one, now_ms) for at, one in self._stored.items()}
        self._groups = {
            topic.name: group_of_log(topic.name) or group_of_topic(topic.published.configs)
            for topic in topics
        }
        self._logs = logs
        for at, one in self._stored.items():
            self._add_numbers(at, one)
        self._records, self._numbers = restored_records(logs.values(), now_ms)
        self._left_out = {at: list(self._open_parts(at, one)) for at, one in self._stored.items()}
        self._torn = {group: torn_commits(log, self._store_has) for group, log in logs.items()}
        self._torn_sequences = {group: self._torn_sequence(group) for group in logs}
        self._leader_epoch = leader_epoch_of(self._stored.values())
        self._manifests: dict[RemotePartition, bytes] = {}

    def _add_numbers(self, at: TopicPartition, stored: Stored) -> None:
        """Record the numbers that are found in a partition as assigned, so that no coordinator assigns them again: the
        commit sequences (the numbers that order the commits) and the producer ids.
        """
        group = self._groups[at[0]]
        log = self._logs.setdefault(group, CommitLog(group))
        if stored.restored is not None:
            log.sequence_end = max(log.sequence_end, stored.restored.next_sequence)
            log.raise_producer_ids_end(stored.restored.producer_ids_end - 1)
        if is_coordinator_log(at[0]):
            return
        log.sequence_end = max(log.sequence_end, stored.latest_sequence + 1)
        for producer in self._tables[at] or ():
            log.raise_producer_ids_end(producer.producer_id)

    def _store_has(self, at: TopicPartition, txn: TransactionMetadata) -> bool:
        """Return whether the store has all records of a committed transaction in one partition. If the store has the
        beginning of a transaction, it also has the end: copies to the store never end inside an open transaction.
        """
        stored = self._stored.get(at)
        if stored is None or is_coordinator_log(at[0]):
            return is_coordinator_log(at[0])
        if any(
            # The transactions of a joint commit have the same commit sequence.
            (part.producer_id, one.commit_sequence) == (txn.producer_id, txn.commit_sequence)
            for part, one in self._left_out[at]
        ):
            return False
        if txn.ends:
            return stored.end_offset >= txn.ends[at].end_offset
        # The marker raises the epoch of the producer.
        table = self._tables[at]
        producer = None if table is None else table.get(txn.producer_id)
        return producer is not None and producer.producer_epoch >= txn.producer_epoch

    def _open_parts(self, at: TopicPartition, stored: Stored) -> Iterator[tuple[OpenPart, LeftOut]]:
        """Find the transactions whose markers are not in the store, so that the restore must abort them in a partition.

        The commit or abort of all of these transactions was decided when the partition was copied. In most topics, the
        broker can write the missing marker of a committed transaction when it opens the partition, so the restore need
        not abort the transaction. In a commit-ordered topic the broker cannot: with the marker it would have to list
        the transaction in the segment's commit index (which says where the records of each commit are), and it builds
        this index from local segments, which do not have the records.

        Yields:
            For each transaction, an `OpenPart`, which names what to abort in the partition, and a `LeftOut`, which
            describes it for the report.
        """
        if is_coordinator_log(at[0]):
            return
        log = self._logs[self._groups[at[0]]]
        for producer in self._tables[at] or ():
            if producer.txn_first_offset == NO_TXN:
                continue
            named = [
                (one.commit_sequence, transactional_id, one)
                for (transactional_id, _), one in log.commits.items()
                if one.producer_id == producer.producer_id
                and one.transaction_epoch == producer.producer_epoch
                and at in one.partitions
            ]
            ended = [
                one
                for one in named
                if not one[2].ends or one[2].ends[at].end_offset > producer.txn_first_offset
            ]
            sequence, transactional_id, txn = min(ended, key=itemgetter(0), default=(-1, None, None))
            has_all = txn is not None and txn.ends and stored.end_offset >= txn.ends[at].end_offset
            if has_all and not self._is_commit_ordered(at[0]):
                continue
            epoch = producer.producer_epoch if txn is None else txn.producer_epoch
            first_offset, count = producer.txn_first_offset, producer.txn_record_count
            yield (
                OpenPart(producer.producer_id, epoch, producer.coordinator_epoch, first_offset, count),
                LeftOut(transactional_id, sequence, *at, first_offset, count),
            )

    def _torn_sequence(self, group: str) -> int:
        """Return the greatest commit sequence (a commit's number in the order of commits) of a commit of this
        transaction group (topics whose commits have one order) that may be torn in commit-ordered topics: present in
        some partitions, and lost in others. -1 if there is none.

        The commit log names the partitions of its commits. For a commit whose record was trimmed from the log, these
        partitions are unknown: the commit may be missing in each partition whose last commit sequence is less than that
        of the commit.
        """
        latest = {
            at: one.latest_sequence
            for at, one in self._stored.items()
            if not is_coordinator_log(at[0])
            and self._groups[at[0]] == group
            and self._is_commit_ordered(at[0])
        }
        found = [one.commit_sequence for one in self._torn[group] if any(at in latest for at in one.found)]
        commits = self._logs[group].commits
        trimmed_end = min((sequence for _, sequence in commits), default=self._logs[group].sequence_end)
        greatest = min(max(latest.values(), default=-1), trimmed_end - 1)
        found += [
            one.restored.torn_sequence
            for at, one in self._stored.items()
            if one.restored is not None and self._groups[at[0]] == group
        ]
        if greatest > max(min(latest.values(), default=-1), 0):
            found.append(greatest)
        return max(found, default=-1)

    def _is_commit_ordered(self, name: str) -> bool:
        return order_of(self._topics[name].published.configs) == "commit"

    # -- the plan --------------------------------------------------------------------------------------------------

    def plan(self) -> RestorePlan:
        """Make the plan: decide the content of all files of the directory, and the manifests (lists of a partition's
        segments in the store) that the restore publishes.
        """
        for at, one in self._stored.items():
            payload = encode_manifest(self._published_manifest(at, one), self._now_ms)
            self._manifests[one.partition] = payload
            self._stored[at] = one._replace(payload=payload)
        files = {
            f"{name}-{index}": self._partition_files((name, index), one)
            for (name, index), one in self._stored.items()
        }
        listed = [
            ListedTopic(
                name, _remote_partition(topic, 0).topic_id, self._counts[name], dict(topic.published.configs)
            )
            for name, topic in self._topics.items()
        ]
        rows = [row for one in self._stored.values() for row in one.manifest.segments]
        node_id = max(rows, key=lambda row: row.event_ms).broker_id if rows else 1
        report = Report(
            self._cluster_id,
            node_id,
            [self._partition_loss(at, one) for at, one in self._stored.items()],
            [],
            [one for torn in self._torn.values() for one in torn],
            [one for parts in self._left_out.values() for _, one in parts],
            {group: sequence for group, sequence in self._torn_sequences.items() if sequence >= 0},
            self._numbers.commit_sequences,
            self._numbers.next_producer_id,
            self._leader_epoch,
            *self._settings,
        )
        epoch = self._leader_epoch
        has_settings = any(self._settings)
        others = {SETTINGS_FILE: encode_settings(*self._settings)} if has_settings else {}
        others[META_FILE] = encode_meta(self._cluster_id, node_id, [META_LINE] if has_settings else [])
        others[CATALOG_FILE] = encode_catalog(self._cluster_id, epoch, epoch, listed)
        return RestorePlan(files, others, self._manifests, report)

    def _partition_files(self, at: TopicPartition, stored: Stored) -> dict[str, bytes]:
        name, index = at
        if not is_coordinator_log(name):
            lost = self._restored_file(at, stored)
            parts = [part for part, _ in self._left_out[at]]
            markers = abort_markers(parts, lost.ranges[-1][1], self._leader_epoch, self._now_ms)
            is_ordered = self._is_commit_ordered(name)
            files = topic_files(stored, self._leader_epoch, lost, markers, is_commit_ordered=is_ordered)
            if is_ordered and stored.latest_sequence >= 0:
                # The commit indexes of the local segments have to name the commits before them.
                first = FirstSequence(stored.end_offset, stored.latest_sequence)
                files[FIRST_SEQUENCE_FILE] = encode_first_sequences([first])
            return files
        group = group_of_log(name)
        pairs = self._records[group] if group is not None and index == 0 else []
        files = coordinator_log_files(stored, self._leader_epoch, self._batches(pairs, stored.end_offset))
        copied = self._topics[name].logs.get(index, {})
        return files | {f"{base:020}{LOG}": content for base, content in copied.items()}

    def _restored_file(self, at: TopicPartition, stored: Stored) -> Restored:
        group = self._groups[at[0]]
        return Restored(
            lost_ranges(stored) if not is_coordinator_log(at[0]) else (),
            self._numbers.next_producer_id,
            self._torn_sequences[group],
            self._numbers.commit_sequences[group],
            self._leader_epoch,
        )

    def _published_manifest(self, at: TopicPartition, stored: Stored) -> Manifest:
        """Return the manifest (the list of a partition's segments in the store) that the restore publishes. It also has
        the commit sequence (a commit's number in the order of commits) and the producer id from which a later restore
        must continue.
        """
        log_end = stored.log_end if is_coordinator_log(at[0]) else gap_end(stored)
        topic = self._topics[at[0]].published
        return stored.manifest._replace(
            published=Published(
                log_end,
                self._now_ms,
                self._counts[at[0]],
                dict(topic.configs),
                stored.partition.topic_id,
                stored.partition.partition,
                self._restored_file(at, stored),
                stored.view_start,
            )
        )

    def _batches(self, pairs: list[Pair], offset: int) -> bytes:
        """Encode the records (pairs of key and value) that the restore appends to a commit log at `offset`."""
        batches = []
        for begin in range(0, len(pairs), RECORD_COUNT_MAX):
            records = [Record(0, self._now_ms, *pair) for pair in pairs[begin : begin + RECORD_COUNT_MAX]]
            batches.append(encode_batch(records, base_offset=offset + begin, leader_epoch=self._leader_epoch))
        return b"".join(batches)

    @staticmethod
    def _partition_loss(at: TopicPartition, stored: Stored) -> PartitionLoss:
        said = stored.manifest.published
        return PartitionLoss(
            *at,
            stored.manifest.log_start,
            stored.end_offset,
            None if said is None else stored.log_end,
            None if said is None else said.time_ms,
            None if is_coordinator_log(at[0]) else gap_end(stored),
        )


def _remote_partition(topic: StoredTopic, index: int) -> RemotePartition:
    """Return the id of a partition in the store: topic, topic id and number. The store need not have any object of the
    partition.
    """
    return next(iter(topic.partitions.values())).partition._replace(partition=index)
