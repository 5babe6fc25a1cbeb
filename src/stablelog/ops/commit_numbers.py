"""The commit sequences (the numbers that order the commits) and producer ids that coordinators have assigned,
as far as the files of a data directory show. Each transaction group, the topics whose commits have one order, has a
coordinator and a commit log of its own.

A coordinator continues from the numbers in its commit log. If the end of the commit log was cut off, it would assign
numbers again that batches in partitions already have. So `stablelog repair` reads the assigned numbers from the batches
and producer snapshots of all partitions, and from the bytes that were cut off. Then it appends a record with the next
numbers to the commit log.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stablelog.batch.header import BatchHeader
from stablelog.batch.markers import read_marker
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.coordinators.log_names import group_of_log
from stablelog.coordinators.transactions.commit_sequences import FIRST_SEQUENCE
from stablelog.coordinators.transactions.joint.records import decode_joint
from stablelog.coordinators.transactions.producer_ids import BLOCK_SIZE, GIVEN_ID_MAX
from stablelog.coordinators.transactions.records import (
    JointKey,
    TransactionGroupKey,
    TransactionGroupState,
    TransactionKey,
    decode_group,
    decode_transaction,
    encode_group,
    group_key,
    read_key,
)
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, UnknownFormatError, adding_path
from stablelog.log.files.names import (
    CUT,
    LOG,
    file_path,
    has_offset,
    is_log,
    is_snapshot,
    log_offsets,
    offset_of,
)
from stablelog.log.producer_state.snapshots import decode_either
from stablelog.log.recovery.damage import Damage
from stablelog.log.recovery.tail import batches_after_damage, lost_batches

# How many blocks of producer ids to skip for each transaction group. A coordinator reserves ids in blocks by a record
# in its commit log. If the last such record was lost, clients may use ids of its block.
SPARE_BLOCKS: Final = 1


@dataclass(slots=True)
class AssignedNumbers:
    """The greatest assigned numbers that were found: commit sequences (the numbers that order the commits) and
    producer ids.

    Attributes:
        sequence_ends: the greatest commit sequence plus one, by transaction group (the topics whose commits have one
            order).
        producer_ids_end: the greatest producer id plus one.
    """

    sequence_ends: dict[str, int] = field(default_factory=dict)
    producer_ids_end: int = 0

    def sequence_end(self, group: str) -> int:
        """Return the end of the commit sequences that were found for a transaction group, the topics whose commits have
        one order: the greatest one plus one. A commit sequence is the number of a commit in this order.
        """
        return self.sequence_ends.get(group, FIRST_SEQUENCE)

    def add_batch(self, header: BatchHeader, batch: bytes) -> None:
        """Add the numbers in a batch to the assigned ones: its producer id and, if the batch is a commit marker, the
        commit sequence in it, which is the number of the commit in the order of commits.
        """
        self.add_producer_id(header.producer_id)
        if not header.is_control:
            return
        marker = read_marker(batch)
        if marker is not None and marker.group is not None:
            self._raise_sequence_end(marker.group, marker.commit_sequence + 1)

    def add_producer_id(self, producer_id: int) -> None:
        """Add a producer id to the assigned ones. An id that no coordinator can have assigned is ignored: a client may
        have sent any number.
        """
        if producer_id <= GIVEN_ID_MAX:
            self.producer_ids_end = max(self.producer_ids_end, producer_id + 1)

    def add_records(self, group: str, header: BatchHeader, batch: bytes) -> None:
        """Add the numbers in a batch of a commit log to the assigned ones: commit sequences (the numbers that
        order the commits) and producer ids. Damaged records are skipped. `group` is the transaction group of the log,
        the topics whose commits have one order.

        Raises:
            UnknownFormatError: a later release has written a record.
        """
        for record in () if header.is_control else decode_records(batch):
            with contextlib.suppress(DamageError):
                self._add_record(group, record)

    def _add_record(self, group: str, record: Record) -> None:
        if record.key is None or record.value is None:
            return
        subject = read_key(record.key)
        if isinstance(subject, TransactionKey):
            txn = decode_transaction(record.value)
            self._raise_sequence_end(group, txn.commit_sequence + 1)
            for producer_id in (txn.producer_id, txn.next_producer_id, txn.client.producer_id):
                self.add_producer_id(producer_id)
        elif isinstance(subject, TransactionGroupKey) and subject.group == group:
            state = decode_group(record.value)
            self._raise_sequence_end(group, state.commit_sequence_next)
            self.producer_ids_end = max(self.producer_ids_end, state.producer_ids_end)
        elif isinstance(subject, JointKey):
            self._raise_sequence_end(group, decode_joint(record.value).commit_sequence + 1)

    def _raise_sequence_end(self, group: str, end: int) -> None:
        self.sequence_ends[group] = max(self.sequence_ends.get(group, 0), end)


def group_of_directory(directory: Path) -> str | None:
    """Return the name of the transaction group (the topics whose commits have one order) whose commit log has a
    partition in this directory; None if the directory belongs to another topic.
    """
    return group_of_log(directory.name.rpartition("-")[0])


def commit_logs(partitions: list[Path]) -> dict[str, list[Path]]:
    """Return those of the partition directories that belong to a commit log, by transaction group, the topics whose
    commits have one order. Each list is in the order of the partition numbers. A coordinator writes only to the first
    partition of its commit log.
    """
    found: dict[str, list[Path]] = {}
    for path in sorted(partitions, key=lambda path: int(path.name.rpartition("-")[2])):
        group = group_of_directory(path)
        if group is not None:
            found.setdefault(group, []).append(path)
    return found


def read_assigned_numbers(disk: Disk, partitions: list[Path]) -> AssignedNumbers:
    """Find the numbers that coordinators have assigned, in all partitions of a data directory: the commit sequences
    (the numbers that order the commits) and the producer ids.

    Three kinds of data are read: all batches, including those that `stablelog repair` has cut off; the producer
    snapshots, which also know producers whose batches are deleted; and the records of the commit logs.

    Args:
        disk: the disk of the directories.
        partitions: the partition directories. Damaged bytes are skipped, and the batches after them are read.

    Raises:
        UnknownFormatError: a later release has written a record of a commit log, possibly after damage. The message
            names the record.
        DiskError: a file cannot be read.
    """
    assigned = AssignedNumbers()
    for directory in partitions:
        group = group_of_directory(directory)
        for producer_id in _producer_ids_in_snapshots(disk, directory):
            assigned.add_producer_id(producer_id)
        for path, header, batch in _batches(disk, directory, with_cuts=True):
            assigned.add_batch(header, batch)
            if group is not None:
                with adding_path(f"{path}, offset {header.base_offset}"):
                    assigned.add_records(group, header, batch)
    return assigned


def read_logged_numbers(disk: Disk, logs: list[Path], group: str) -> AssignedNumbers:
    """Return the numbers from which the coordinator of a transaction group would continue, as it finds them in the
    commit log: the ends of the commit sequences (the numbers that order the commits) and of the producer ids.

    Args:
        disk: the disk of the commit log.
        logs: the directories of the partitions of the commit log.
        group: the transaction group, the topics whose commits have one order.
    """
    logged = AssignedNumbers()
    for directory in logs:
        for _, header, batch in _batches(disk, directory, with_cuts=False):
            logged.add_records(group, header, batch)
    return logged


def next_numbers(
    assigned: AssignedNumbers, logged: Mapping[str, AssignedNumbers], group: str, *, is_cut: bool
) -> TransactionGroupState | None:
    """Decide the next commit sequence (a commit's number in the order of commits) and the next producer id that the
    coordinator of a transaction group assigns.

    Coordinators reserve producer ids in blocks. The coordinator must continue after the block of the greatest known id
    and some further blocks: a client may have an id without a batch in any partition, and it is unknown which blocks
    the lost records had reserved.

    Args:
        assigned: the numbers that coordinators have assigned.
        logged: the next numbers in each commit log, by transaction group. All groups take producer ids from one range.
        group: the transaction group, the topics whose commits have one order.
        is_cut: whether the end of the group's commit log was cut off. The lost part may have reserved producer ids that
            no batch contains yet.

    Returns:
        The content of the record to append to the group's commit log; None if the commit log already has numbers that
        are high enough.
    """
    sequence_end, known_end = assigned.sequence_end(group), logged[group].sequence_end(group)
    reserved_end = max(one.producer_ids_end for one in logged.values())
    if not is_cut and sequence_end <= known_end and assigned.producer_ids_end <= reserved_end:
        return None
    block_count = -(-max(assigned.producer_ids_end, reserved_end) // BLOCK_SIZE) + SPARE_BLOCKS * len(logged)
    return TransactionGroupState(block_count * BLOCK_SIZE, max(sequence_end, known_end))


def _producer_ids_in_snapshots(disk: Disk, directory: Path) -> Iterator[int]:
    """Yield the producer ids in a partition's snapshots of the producer state. Snapshots that cannot be read are
    skipped.
    """
    for name in disk.list_dir(directory):
        if not is_snapshot(name):
            continue
        with contextlib.suppress(DamageError, UnknownFormatError):
            producers = decode_either(name, disk.read_bytes(directory / name))
            yield from (producer.producer_id for producer in producers)


def _batches(disk: Disk, directory: Path, *, with_cuts: bool) -> Iterator[tuple[Path, BatchHeader, bytes]]:
    """Yield every whole batch of a partition, as (file, header, bytes). The bytes of a data batch are read only in a
    commit log; in other partitions they are empty.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        with_cuts: whether to read also the files with the bytes that `stablelog repair` has cut off.
    """
    is_commit_log = group_of_directory(directory) is not None
    for name in sorted(disk.list_dir(directory)):
        if not is_log(name) and not (with_cuts and CUT in name and has_offset(name)):
            continue
        path = directory / name
        for header, batch in _batches_in(disk, path, -1, offset_of(name), with_data=is_commit_log):
            yield path, header, batch


def _batches_in(
    disk: Disk, path: Path, position: int, base_offset: int, *, with_data: bool
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield every whole batch of a log file as (header, bytes), also those after damage.

    Args:
        disk: the disk of the file.
        path: the path of the file.
        position: the position of the batch where the search begins; -1 to search the whole file.
        base_offset: batches that begin before this offset are left out.
        with_data: whether the bytes of data batches are read; otherwise they are empty.
    """
    with contextlib.closing(disk.open(path)) as file:
        for at, header in lost_batches(file, position, base_offset):
            yield header, file.read(at, header.size) if with_data or header.is_control else b""


@dataclass(frozen=True, slots=True)
class LostDecisions:
    """The decisions that a repair removes from a commit log when it truncates the log: commits and aborts.

    Attributes:
        transactional_ids: the transactional ids whose state changed in the removed part.
        first_commit: the least commit sequence (a commit's number in the order of commits) in the removed part; 0 if it
            has no commit.
        last_commit: the greatest commit sequence in the removed part; 0 if it has no commit.
    """

    transactional_ids: frozenset[str]
    first_commit: int
    last_commit: int


def lost_decisions(disk: Disk, damage: Damage) -> LostDecisions:
    """Find the decisions (commits and aborts) that a truncation of a commit log removes, in the whole batches of the
    removed part.
    """
    ids, sequences = set(), set()
    for path, position, base_offset in damage.lost_files():
        for header, batch in _batches_in(disk, path, position, base_offset, with_data=True):
            for record in () if header.is_control else decode_records(batch):
                with contextlib.suppress(DamageError, UnknownFormatError):
                    subject = None if record.key is None else read_key(record.key)
                    if not isinstance(subject, TransactionKey):
                        continue
                    ids.add(subject.transactional_id)
                    if record.value is not None:
                        sequences.add(decode_transaction(record.value).commit_sequence)
    decided = [sequence for sequence in sequences if sequence > 0]
    return LostDecisions(frozenset(ids), min(decided, default=0), max(decided, default=0))


def append_next_numbers(
    disk: Disk, directory: Path, group: str, state: TransactionGroupState, *, leader_epoch: int
) -> None:
    """Append a record to a commit log with the next numbers that its coordinator assigns: the commit sequence (a
    commit's number in the order of commits) and the producer id. The record is durable on return.

    Args:
        disk: the disk of the commit log. No broker may have the log open.
        directory: the commit log's directory. The log must be undamaged.
        group: the transaction group, the topics whose commits have one order.
        state: the content of the record, from `next_numbers`.
        leader_epoch: the leader epoch of the last start of the broker.
    """
    end_offset = log_offsets(disk.list_dir(directory))[-1]
    with contextlib.closing(disk.open(file_path(directory, end_offset, LOG))) as file:
        for _, header in batches_after_damage(file, -1, end_offset):
            end_offset, leader_epoch = header.next_offset, max(leader_epoch, header.leader_epoch)
        record = Record(end_offset, time.time_ns() // 1_000_000, group_key(group), encode_group(state), ())
        file.append(encode_batch([record], base_offset=end_offset, leader_epoch=leader_epoch))
        file.sync()
