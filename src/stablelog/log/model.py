"""What the log is asked and what it answers: the values at the border of this room."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from stablelog.batch.markers import Marker
from stablelog.env.disk import Buffer
from stablelog.log.indexes.transaction_index import AbortedTxn

DAY_MS = 86_400_000


class Isolation(IntEnum):
    """Up to where a reader sees."""

    LOG_END = -1
    READ_UNCOMMITTED = 0  # to the high watermark
    READ_COMMITTED = 1  # to the last stable offset


class Origin(IntEnum):
    """Who appends."""

    CLIENT = 0  # everything is checked
    COORDINATOR = 1  # the broker's own records: no sequences
    REPLICATION = 2  # another log's batches with their offsets: taken as they are


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one partition's log. Sizes in bytes, times in ms; -1 means no limit."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_ms_max: int = 2**63 - 1
    message_timestamp_after_ms_max: int = 60 * 60_000
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = DAY_MS
    snapshot_bytes: int = 64 << 20
    order: str = "offset"  # or "commit": what a read-committed reader gets; it cannot change

    @property
    def is_commit_ordered(self) -> bool:
        """Whether read-committed readers get whole transactions in the order of their commits."""
        return self.order == "commit"

    @property
    def is_log_append_time(self) -> bool:
        """Whether records get the broker's time in place of their producers'."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def is_compacted(self) -> bool:
        """Whether compaction keeps the last record of each key, so that each record needs one."""
        return "compact" in self.cleanup_policy


class Appended(NamedTuple):
    """Where an append went. Of a duplicate: where the original is. Offsets inclusive."""

    first_offset: int
    last_offset: int
    append_time_ms: int  # -1 where records keep their producer's time
    start_offset: int  # of the log
    duplicate: bool = False


class MarkerWrite(NamedTuple):
    """A marker to be written, with the epoch that it is to carry."""

    producer_id: int
    producer_epoch: int
    marker: Marker
    transaction_version: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole batches, as they stand in the log.

    Attributes:
        buffers: their bytes, in pieces.
        start_offset: what was asked for. The first batch contains it or begins after it.
        end_offset: where the last batch ends, exclusive; `start_offset` if there is none.
        aborted: the aborted transactions that touch it; None unless committed records were asked for.
    """

    buffers: Sequence[Buffer]
    start_offset: int
    end_offset: int
    aborted: tuple[AbortedTxn, ...] | None

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(buffer) for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class OpenTxn:
    """A transaction that is open in a partition. `started_ms` by the broker's clock."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    started_ms: int
    leader_epoch: int = -1  # of its first record
