"""The types that the log shares with its callers: settings, isolation levels, arguments and results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from stablelog.batch.header import BatchHeader, Codec
from stablelog.batch.markers import Marker
from stablelog.env.disk import Buffer
from stablelog.log.indexes.transaction_index import AbortedTxn

DAY_MS = 86_400_000
AS_TOTAL = -2  # value of a local retention limit: the limit of the whole log applies


class Isolation(IntEnum):
    """The isolation level of a reader, which limits the records that the reader gets."""

    LOG_END = -1  # the reader sees all records, also those that are not durable yet
    READ_UNCOMMITTED = 0  # the reader sees records up to the high watermark
    READ_COMMITTED = 1  # the reader sees records up to the last stable offset


class Origin(IntEnum):
    """Who appends batches: a client, a coordinator, or replication from another log. The origin decides how the batches
    are checked.
    """

    CLIENT = 0  # a producer's batch: all checks
    COORDINATOR = 1  # the broker's own records, which have no sequence numbers
    REPLICATION = 2  # batches copied from another log, which keep their offsets


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one partition's log. Sizes are in bytes, times in ms; -1 means no limit."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    max_message_bytes: int = 1_048_588
    compression_type: str = "producer"
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_ms_max: int = 2**63 - 1
    message_timestamp_after_ms_max: int = 60 * 60_000
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = DAY_MS
    snapshot_bytes: int = 64 << 20
    # The topic's `stablelog.order`: "offset" or "commit". With "commit", read-committed readers get the records in
    # commit order. The setting cannot change.
    order: str = "offset"
    # Tiered storage. With `is_tiered`, segments are copied to the object store. The two `local_` limits bound how long
    # copied segments stay on the local disk; AS_TOTAL means the limit of the whole log. With `is_copy_disabled`, no
    # more segments are copied. With `is_deleted_on_disable`, the records in the store are deleted when the topic is no
    # longer tiered.
    is_tiered: bool = False
    local_retention_ms: int = AS_TOTAL
    local_retention_bytes: int = AS_TOTAL
    is_copy_disabled: bool = False
    is_deleted_on_disable: bool = False
    # Whether the data of aborted transactions is left out of copies in the object store, and whether it is removed from
    # sealed segments on the local disk.
    drops_aborted_copies: bool = False
    drops_aborted: bool = False
    # Whether the records of each batch of a client are decoded to prove that clients can read them.
    proves_records: bool = True

    @property
    def local(self) -> "LogConfig":
        """These settings, with the limits for the local disk of a topic that also has segments in an object store
        (`local.retention.ms`, `local.retention.bytes`) as `retention_ms` and `retention_bytes`.
        """
        return replace(
            self,
            retention_ms=self.retention_ms
            if self.local_retention_ms == AS_TOTAL
            else self.local_retention_ms,
            retention_bytes=(
                self.retention_bytes if self.local_retention_bytes == AS_TOTAL else self.local_retention_bytes
            ),
        )

    @property
    def codec(self) -> Codec | None:
        """The codec of batches in the log, by `compression.type`; None if each batch keeps the codec of its producer."""
        if self.compression_type == "producer":
            return None
        return Codec.NONE if self.compression_type == "uncompressed" else Codec[self.compression_type.upper()]

    @property
    def is_commit_ordered(self) -> bool:
        """Whether read-committed readers get whole transactions in the order of their commits
        (`stablelog.order=commit`).
        """
        return self.order == "commit"

    @property
    def is_log_append_time(self) -> bool:
        """Whether records get the broker's time in place of the producer's timestamp."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted. Each record then needs a key."""
        return "compact" in self.cleanup_policy


class Appended(NamedTuple):
    """The first and the last offset that an append has assigned. For a duplicate, they are those of the original
    batch.
    """

    first_offset: int
    last_offset: int
    append_time_ms: int  # -1 in topics whose records keep their producers' timestamps
    duplicate: bool = False


class PlannedBatch(NamedTuple):
    """A batch that has passed all checks and is planned for an append: the bytes to write to the log, with its offset.

    Attributes:
        header: the header, with the offset and the leader epoch that the log assigns.
        head: the 61 bytes of this header.
        buffers: all bytes of the batch, in one or more buffers.
        marker: the decoded marker of a control batch; None if the batch is no transaction marker.
    """

    header: BatchHeader
    head: Buffer
    buffers: tuple[Buffer, ...]
    marker: Marker | None = None


class MarkerWrite(NamedTuple):
    """A transaction marker to be written, with the producer id and the producer epoch that its batch gets."""

    producer_id: int
    producer_epoch: int
    marker: Marker
    transaction_version: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """The result of a read: whole batches of the log.

    Attributes:
        buffers: the bytes of the batches, in one or more buffers in this order.
        start_offset: the offset that was requested. The first batch contains it, or begins after it.
        end_offset: the end of the last batch, exclusive; `start_offset` if there is no batch.
        aborted: the aborted transactions that have batches among these, from which the reader finds the records to
            leave out; None for a reader that is not read-committed.
    """

    buffers: Sequence[Buffer]
    start_offset: int
    end_offset: int
    aborted: tuple[AbortedTxn, ...] | None

    @property
    def size(self) -> int:
        """The size of all batches in bytes."""
        return sum(len(buffer) for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class OpenTxn:
    """An open transaction in one partition. `started_ms` is the time of its first record in broker time, a clock that
    never goes back, even if the machine's clock is set back.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    started_ms: int
    leader_epoch: int = -1  # the leader epoch of the transaction's first record
