"""Reader of single records of several partitions, in each partition in the order of the offsets, for both isolation
levels.

`stablelog consume` and readers of consumer groups use it; `core.transaction_stream` reads whole transactions.
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.aborted import AbortedFilter
from stablelog.batch.compression import decompress
from stablelog.batch.header import HEADER, BatchHeader, crc_holds, headers_in
from stablelog.batch.records import read_headers
from stablelog.batch.walk import walk_fields
from stablelog.client.core.cluster import EARLIEST, Cluster
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.fetch_request import receive_fetch, send_fetch
from stablelog.client.core.long_poll import SEVERAL_LEADERS_WAIT_S
from stablelog.client.core.partitions import list_offsets
from stablelog.client.core.steps import Pause, Steps
from stablelog.client.core.transaction_stream import ReadRecord
from stablelog.client.responses import (
    RETRIABLE_CODES,
    RetriableError,
    check,
    is_retriable,
)
from stablelog.errors import DamageError, StablelogError
from stablelog.types import TopicPartition
from stablelog.wire.fetch import Fetched

FETCH_SIZE_MAX: Final = 4 << 20  # bytes of records in one response of a leader
BACKOFF_S: Final = 0.1  # after a round in which no leader answered


class ReadBatch(NamedTuple):
    """The records of one fetched batch.

    Attributes:
        target: the partition.
        header: the header of the batch.
        records: its decompressed records as bytes, which `batch.walk.walk_fields` decodes.
        first_offset: the records of the batch before this offset have been read already, and are skipped.
    """

    target: TopicPartition
    header: BatchHeader
    records: bytes
    first_offset: int


def records_of(batch: ReadBatch) -> Iterable[ReadRecord]:
    """Decode the records of a batch. Return an iterator of the records from the `first_offset` of the batch on."""
    header, (topic, partition) = batch.header, batch.target
    records = batch.records
    for timestamp_delta, offset_delta, key, value, at in walk_fields(records, header.record_count):
        offset = header.base_offset + offset_delta
        if offset >= batch.first_offset:
            time_ms = (
                header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
            )
            headers = tuple(read_headers(records, at)[0]) if records[at] else ()
            yield ReadRecord(topic, partition, offset, time_ms, key, value, headers)


class Round(NamedTuple):
    """The result of one round of fetches: one request to each leader.

    Attributes:
        batches: the batches that were read, those of a partition in the order of their offsets.
        at_end: the partitions of which every readable record was read.
        failures: the partitions that could not be read, each with the reason. The next round tries again.
        moved: the partitions whose next record was deleted from the log, each with the offset at which it would have
            been read. The reader continues in them at the start of the log.
    """

    batches: list[ReadBatch]
    at_end: set[TopicPartition]
    failures: dict[TopicPartition, str]
    moved: dict[TopicPartition, int]


class RecordReader:
    """Reads the records of several partitions, in each from an offset of its own on.

    Args:
        cluster: the brokers.
        positions: the next offset to read of each partition; EARLIEST or LATEST for the start or the end, which the reader
            asks for when the partition has a leader.
        isolation: read_committed or read_uncommitted.

    Attributes:
        positions: the next offset to read of each partition.
        paused: the partitions that are not read now. Their positions stay.
    """

    def __init__(self, cluster: Cluster, positions: Mapping[TopicPartition, int], isolation: str) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self.positions = dict(positions)
        self.paused: frozenset[TopicPartition] = frozenset()
        self._aborted: dict[TopicPartition, AbortedFilter] = {}

    def remove_partition(self, target: TopicPartition) -> None:
        """Stop reading a partition."""
        self.positions.pop(target, None)
        self._aborted.pop(target, None)

    def seek(self, target: TopicPartition, offset: int) -> None:
        """Continue at another offset of a partition."""
        self.positions[target] = offset
        self._aborted.pop(target, None)

    def active_partitions(self) -> list[TopicPartition]:
        """Return the partitions that are not paused."""
        return [target for target in self.positions if target not in self.paused]

    def read_round(self, wait_s: float) -> Steps[Round]:
        """Send one Fetch request to each leader, and return the records and errors of their responses.

        Args:
            wait_s: how long a leader may wait for a record if there is none.

        Raises:
            RefusedError: a partition does not exist, or the user may not read it.
            DamageError: a batch is damaged; the message names partition and offset.

        If the call raises, `positions` is as it was before the call, so that the next call reads the records of all
        partitions again.
        """
        before = dict(self.positions)
        try:
            return (yield from self._read_round(wait_s))
        except BaseException:
            for target, position in before.items():
                self.seek(target, position)
            raise

    def _read_round(self, wait_s: float) -> Steps[Round]:
        found = Round([], set(), {}, {})
        leaders = yield from self._positions_by_leader(found)
        if len(leaders) > 1:
            wait_s = min(wait_s, SEVERAL_LEADERS_WAIT_S)
        # All responses are received before one is looked into: what is asked then must not get the response to a fetch.
        for target, fetched in (yield from self._fetch_from_leaders(leaders, wait_s, found)):
            yield from self._take_batches(target, fetched, found)
        if found.failures:
            self._cluster.forget_metadata()
            if len(found.failures) == len(self.active_partitions()):
                yield Pause(BACKOFF_S)
        return found

    def _positions_by_leader(self, found: Round) -> Steps[dict[int, dict[TopicPartition, int]]]:
        """Group the partitions that are not paused, with the offsets to read next, by the node id of their leader. A
        partition without a leader is left out, and added to the failures of the round (the result of this round of
        fetches).
        """
        leaders: dict[int, dict[TopicPartition, int]] = {}
        leader_ids: dict[TopicPartition, int] = {}
        active = self.active_partitions()
        try:
            for target in active:
                try:
                    leader_ids[target] = yield from self._cluster.leader(*target)
                except RetriableError as failure:
                    found.failures[target] = str(failure)
            unknown = {target: at for target, at in self.positions.items() if at < 0 and target in leader_ids}
            if unknown:
                for target, at in (yield from list_offsets(self._cluster, unknown, self._isolation)).items():
                    self.positions[target] = at.offset
            for target, leader_id in leader_ids.items():
                leaders.setdefault(leader_id, {})[target] = self.positions[target]
        except (RetriableError, StablelogError) as failure:
            self._add_failure(found, active, failure)
            return {}
        return leaders

    def _fetch_from_leaders(
        self, leaders: Mapping[int, Mapping[TopicPartition, int]], wait_s: float, found: Round
    ) -> Steps[list[tuple[TopicPartition, Fetched]]]:
        """Send a Fetch request to each leader, and receive the responses. Return each partition with what was fetched
        of it. The partitions of a leader that does not respond are added to the failures of the round instead.
        """
        fetched: list[tuple[TopicPartition, Fetched]] = []
        connections: dict[int, BrokerConnection] = {}
        try:
            for leader_id, wanted in leaders.items():
                try:
                    connection = yield from self._cluster.connection_to(leader_id)
                    yield from send_fetch(
                        connection, wanted, FETCH_SIZE_MAX, self._isolation, ceil(1000 * wait_s)
                    )
                    connections[leader_id] = connection
                except (RetriableError, StablelogError) as failure:
                    self._add_failure(found, wanted, failure)
            for leader_id, connection in connections.items():
                wanted = leaders[leader_id]
                try:
                    response = yield from receive_fetch(connection)
                    check(response.error, "reading records")
                except (RetriableError, StablelogError) as failure:
                    self._add_failure(found, wanted, failure)
                else:
                    there = [target for target in wanted if target in response.partitions]
                    fetched += [(target, response.partitions[target]) for target in there]
        finally:
            for connection in connections.values():
                if connection.is_awaiting:
                    connection.close()  # a later request would get the response to this one
        return fetched

    def _add_failure(self, found: Round, targets: Iterable[TopicPartition], failure: Exception) -> None:
        """Add partitions to the failures of the round (the result of this round of fetches), with the reason. If no
        retry can resolve the failure, raise it.
        """
        if not is_retriable(failure):
            raise failure
        self._cluster.check_cancelled("reading records")
        found.failures.update(dict.fromkeys(targets, str(failure)))

    def _take_batches(self, target: TopicPartition, fetched: Fetched, found: Round) -> Steps[None]:
        name = f"{target[0]}-{target[1]}"
        if fetched.error is ErrorCode.offset_out_of_range:
            listed = yield from list_offsets(self._cluster, {target: EARLIEST}, self._isolation)
            found.moved[target] = self.positions[target]
            self.seek(target, listed[target].offset)
            return
        if fetched.error is ErrorCode.unknown_topic_or_partition:
            # The leader may not know the partition yet, or the topic was deleted: metadata knows.
            self._cluster.forget_metadata()
            try:
                yield from self._cluster.topic(target[0])
            except RetriableError as failure:
                found.failures[target] = str(failure)
                return
        if fetched.error in RETRIABLE_CODES:
            found.failures[target] = fetched.error.name.upper()
            return
        check(fetched.error, f"reading {name}")
        committed = self._isolation == "read_committed"
        aborted = self._aborted.setdefault(target, AbortedFilter())
        first_offset = self.positions[target]
        if committed:
            aborted.add(fetched.aborted, first_offset)
        records = fetched.records
        for at, header in headers_in(records):
            if header.next_offset <= first_offset:
                continue
            if not crc_holds(records, at, header):
                raise DamageError(
                    f"{name}: the batch at offset {header.base_offset} is damaged: its CRC is wrong"
                )
            if header.is_control:
                if committed:
                    aborted.process_control(records, at, header.producer_id, header.last_offset)
            elif not (
                committed
                and header.is_transactional
                and aborted.drops_batch(header.producer_id, header.last_offset)
            ):
                packed = records[at + HEADER.size : at + header.size]
                try:
                    plain = decompress(header.codec, packed)
                except DamageError as damage:
                    raise undecodable(target, header, damage) from damage
                found.batches.append(ReadBatch(target, header, plain, first_offset))
            self.positions[target] = header.next_offset
        end = fetched.last_stable_offset if committed else fetched.high_watermark
        if self.positions[target] >= end:
            found.at_end.add(target)


def undecodable(target: TopicPartition, header: BatchHeader, damage: DamageError) -> DamageError:
    """Return the error for a batch whose records cannot be decoded. The message names the offset of the batch, and the
    offset of the next batch, at which a reader can continue.
    """
    topic, partition = target
    return DamageError(
        f"{topic}-{partition}: the batch at offset {header.base_offset} cannot be decoded: {damage}. The next batch "
        f"begins at offset {header.next_offset}"
    )
