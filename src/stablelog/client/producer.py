"""Transactional producer of complete record batches, which appends each batch exactly once despite failures.

A batch keeps its sequence number when it is sent again. The broker remembers a producer's last five batches in each
partition and responds to a repeated batch as it did the first time. So at most five requests are in flight per leader.

The code calls transaction version 1 the first dialect, and transaction version 2 (KIP-890) the second dialect. In
version 2, the first batch adds its partition to the transaction, and each end of a transaction raises the epoch. In
version 1, a separate request adds partitions. Source: KIP-98, KIP-890.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.batch.header import SEQUENCE_MAX
from stablelog.batch.stamping import stamp
from stablelog.client.batch_queue import BatchQueue, Pending
from stablelog.client.cluster import PASSING, Again, Cluster, module_of
from stablelog.client.connection import Connection
from stablelog.errors import Refused, Unavailable
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import message_class
from stablelog.wire.produce import encode_produce_request

IN_FLIGHT_MAX = 5  # the batches of a producer that a broker remembers for each partition
REQUEST_SIZE_MAX = 4 << 20
QUEUE_SIZE_MAX = 8 << 20
TIMEOUT_MS = 60_000
BACKOFF_S = 0.05
SECOND_DIALECT = 12  # the version of Produce that adds partitions to the transaction (transaction version 2)

_ENDED = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transaction_abortable,
    }
)
_LOST = frozenset({ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id})


@dataclass(eq=False, slots=True)
class _Leader:
    """The producer's own connection to one leader, and the batches in flight on it, oldest request first."""

    connection: Connection
    version: int
    requests: deque[list[Pending]] = field(default_factory=deque)


class Producer:
    """A transactional producer of whole batches. It has one transaction at a time.

    Call `begin` first, and again after an abort. After any exception from `append` or `flush`, the transaction can only
    be aborted.

    Args:
        cluster: the brokers.
        transactional_id: `begin` fences an earlier producer with the same id.
        transaction_timeout_ms: after this time the coordinator aborts an open transaction.
        deadline_s: how long batches are retried while none is acknowledged.
        on_acknowledged: called for each acknowledged batch with the number that `append` returned and the base offset;
            -1 if the broker knows that it has the batch, but not at which offset.

    Attributes:
        producer_id: set by `begin`.
        producer_epoch: set by `begin`; `end` changes it in transaction version 2.
        record_count: records acknowledged since `begin`.
        first_offsets: for each partition, the offset of the transaction's first record.
        next_offsets: for each partition, the offset after its last acknowledged record.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = TIMEOUT_MS,
        deadline_s: float = TIMEOUT_MS / 1000,
        on_acknowledged: Callable[[int, int], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._deadline_s = deadline_s
        self._on_acknowledged = on_acknowledged
        self.producer_id = -1
        self.producer_epoch = -1
        self._second_dialect = False
        self._leaders: dict[int, _Leader] = {}
        self._reset()

    def _reset(self) -> None:
        self.record_count = 0
        self.first_offsets: dict[TopicPartition, int] = {}
        self.next_offsets: dict[TopicPartition, int] = {}
        self._queue = BatchQueue()
        self._sequences: dict[TopicPartition, int] = {}  # the base sequence of each partition's next batch
        self._added: set[TopicPartition] = set()
        self._index = 0
        self._progress_at = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether the transaction has a batch. Without one, the coordinator does not know the transaction."""
        return self._index > 0

    # --- begin and end ---

    def begin(self, *, deadline_s: float | None = None) -> None:
        """Get a producer id and epoch. This fences an earlier producer with this id and aborts its open transaction.

        Args:
            deadline_s: replaces the cluster's deadline.

        Raises:
            Refused: the coordinator refuses the transactional id or the timeout; the message says why.
            Unavailable: the coordinator does not respond within the deadline.
        """

        def attempt() -> Any:
            coordinator = self._cluster.coordinator(self._transactional_id)
            self._second_dialect = _speaks_second_dialect(coordinator)
            request_class = coordinator.request_class(ApiKey.INIT_PRODUCER_ID, newest=5)
            answer = self._cluster.ask(
                coordinator,
                request_class(
                    transactional_id=self._transactional_id,
                    transaction_timeout=timedelta(milliseconds=self._transaction_timeout_ms),
                ),
            )
            if answer.error_code is ErrorCode.invalid_transaction_timeout:
                raise Refused(
                    answer.error_code,
                    f"a transaction timeout of {self._transaction_timeout_ms} ms is more than the broker's transaction.max.timeout.ms",
                )
            self._check(answer.error_code, "a producer id")
            if answer.producer_id < 0 or answer.producer_epoch < 0:
                raise Again(f"{coordinator.address} gives no producer id")
            return answer

        answer = self._cluster.retrying(f"beginning {self._transactional_id}", attempt, deadline_s)
        self._close_leaders()
        self._reset()
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def resume(self, producer_id: int, producer_epoch: int) -> None:
        """Take over an open transaction in order to end it, for example from another process. All must be flushed."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._index = 1

    def end(self, *, commit: bool, deadline_s: float | None = None) -> None:
        """Commit or abort the transaction. Before a commit, every batch must be flushed.

        Args:
            commit: True commits, False aborts.
            deadline_s: replaces the cluster's deadline.

        Raises:
            Refused: the transaction was not committed, because it was fenced or has timed out.
            Unavailable: no response within the deadline; the transaction may or may not have ended.
        """
        assert not (commit and self._unacknowledged()), "flush before the commit"
        self._close_leaders()
        if self.has_begun:
            answer = self._cluster.retrying(
                f"ending the transaction of {self._transactional_id}",
                lambda: self._end(commit=commit),
                deadline_s,
            )
            if self._second_dialect and answer.producer_id >= 0:
                self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
                self._sequences.clear()
        sequences = self._sequences
        self._reset()
        if commit:
            self._sequences = sequences
        else:
            self.producer_id = -1  # it is unknown which batches arrived and which sequence comes next

    def _end(self, *, commit: bool) -> Any:
        coordinator = self._cluster.coordinator(self._transactional_id)
        self._second_dialect = _speaks_second_dialect(coordinator)
        request_class = coordinator.request_class(ApiKey.END_TXN, newest=5 if self._second_dialect else 4)
        answer = self._cluster.ask(
            coordinator,
            request_class(
                transactional_id=self._transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                committed=commit,
            ),
        )
        self._check(answer.error_code, "ending it")
        return answer

    def close(self) -> None:
        """Close the connections. An open transaction stays open until a joint commit or its timeout ends it."""
        self._close_leaders()

    # --- appending ---

    def append(self, topic: str, partition: int, batch: bytearray) -> int:
        """Append one whole batch. This method fills in the producer's fields and the CRC.

        The batch may still be in flight on return: its bytes must not change until `flush` returns.

        Returns:
            The number of the batch in the transaction, from 0.

        Raises:
            Refused: the broker refuses this batch or an earlier one, or the transaction has ended.
            Unavailable: no broker accepted the batch within the deadline.
        """
        assert self.producer_id >= 0, "begin comes first"
        target = (topic, partition)
        sequence = self._sequences.get(target, 0)
        count = stamp(batch, self.producer_id, self.producer_epoch, sequence, transactional=True)
        self._sequences[target] = (sequence + count) & SEQUENCE_MAX
        if not self._unacknowledged():
            self._progress_at = time.monotonic()
        index = self._index
        self._queue.add(Pending(index, topic, partition, batch, sequence, count))
        self._index += 1
        self._send(wait=False)
        while self._queue.size > QUEUE_SIZE_MAX:
            self._send(wait=True)
        return index

    def flush(self) -> None:
        """Wait until every batch is acknowledged.

        Raises:
            Refused: the broker refuses a batch, or the transaction has ended.
            Unavailable: no broker accepted the batches within the deadline.
        """
        while self._unacknowledged():
            self._send(wait=True)

    def _unacknowledged(self) -> bool:
        return bool(self._queue) or any(leader.requests for leader in self._leaders.values())

    def _send(self, *, wait: bool) -> None:
        """Receive one response if `wait` is set; then send all batches that may be sent."""
        try:
            busy = next((leader for leader in self._leaders.values() if leader.requests), None)
            if wait and busy is not None:
                self._take_answer(busy)
            self._send_what_may_be()
        except (Again, Unavailable) as failure:
            self._start_over(failure)
        except Refused as refused:
            if refused.code not in PASSING:
                raise
            self._start_over(refused)

    def _send_what_may_be(self) -> None:
        """Send requests to leaders with fewer than the maximum in flight: the oldest batch of each partition."""
        if not self._queue:
            return
        if not self._second_dialect:
            self._add_partitions()
        requests: dict[int, list[Pending]] = {}
        sizes: dict[int, int] = {}
        for pending in self._queue.oldest():
            leader_id = self._cluster.leader(pending.topic, pending.partition)
            leader = self._leaders.get(leader_id)
            if leader is not None and len(leader.requests) >= IN_FLIGHT_MAX:
                continue
            size = sizes.get(leader_id, 0)
            if size and size + len(pending.batch) > REQUEST_SIZE_MAX:
                continue
            requests.setdefault(leader_id, []).append(pending)
            sizes[leader_id] = size + len(pending.batch)
        for batches in requests.values():
            for pending in batches:
                self._queue.take(pending)
        waiting = list(requests.items())
        while waiting:
            leader_id, batches = waiting.pop(0)
            try:
                self._send_request(leader_id, batches)
            except BaseException:
                self._queue.put_back([p for _, left in [(leader_id, batches), *waiting] for p in left])
                raise

    def _send_request(self, leader_id: int, batches: list[Pending]) -> None:
        leader = self._leaders.get(leader_id)
        if leader is None:
            connection = self._cluster.lend_connection(self._cluster.address_of(leader_id))
            version = connection.version(
                ApiKey.PRODUCE, newest=None if self._second_dialect else SECOND_DIALECT - 1
            )
            leader = self._leaders[leader_id] = _Leader(connection, min(version, SECOND_DIALECT))
        body = encode_produce_request(
            leader.version,
            self._transactional_id,
            self._transaction_timeout_ms,
            [((pending.topic, pending.partition), pending.batch) for pending in batches],
        )
        flexible = message_class(ApiKey.PRODUCE, leader.version, "request").__flexible__
        leader.connection.send(ApiKey.PRODUCE, leader.version, body, flexible=flexible)
        leader.requests.append(batches)

    def _add_partitions(self) -> None:
        """In transaction version 1: add partitions to the transaction at the coordinator before their first batch."""
        new = self._queue.targets - self._added
        if not new:
            return
        coordinator = self._cluster.coordinator(self._transactional_id)
        request_class = coordinator.request_class(ApiKey.ADD_PARTITIONS_TO_TXN, newest=3)
        module = module_of(request_class)
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(new):
            topics.setdefault(topic, []).append(partition)
        answer = self._cluster.ask(
            coordinator,
            request_class(
                v3_and_below_transactional_id=self._transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=tuple(
                    module.AddPartitionsToTxnTopic(name=topic, partitions=tuple(partitions))
                    for topic, partitions in topics.items()
                ),
            ),
        )
        for topic in answer.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                if result.partition_error_code is not ErrorCode.operation_not_attempted:
                    self._check(
                        result.partition_error_code, f"adding {topic.name}-{result.partition_index} to it"
                    )
        self._added |= new

    # --- responses ---

    def _take_answer(self, leader: _Leader) -> None:
        """Read the response to the oldest request. If a retry can resolve its error, queue the batches, raise Again."""
        response_class = message_class(ApiKey.PRODUCE, leader.version, "response")
        data = leader.connection.receive(flexible=response_class.__flexible__)
        answer = leader.connection.read(response_class, data)
        batches = {(p.topic, p.partition): p for p in leader.requests.popleft()}
        failed: list[str] = []
        for topic in answer.responses:
            for result in topic.partition_responses:
                pending = batches.pop((topic.name, result.index), None)
                if pending is None:
                    failed.append(f"an answer for {topic.name}-{result.index}, which was not sent")
                    continue
                if result.error_code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                    self._acknowledge(pending, result.base_offset)
                elif result.error_code in PASSING:
                    failed.append(f"{topic.name}-{result.index}: {result.error_code.name}")
                    self._queue.put_back([pending])
                else:
                    failed.append(self._refuse(pending, result))
        if batches:
            failed.append("an answer that names not every partition")
            self._queue.put_back(list(batches.values()))
        if failed:
            raise Again("; ".join(failed))

    def _acknowledge(self, pending: Pending, base_offset: int) -> None:
        target = (pending.topic, pending.partition)
        self._progress_at = time.monotonic()
        self.record_count += pending.record_count
        if self._on_acknowledged is not None:
            self._on_acknowledged(pending.index, base_offset)
        if base_offset >= 0:
            self.first_offsets.setdefault(target, base_offset)
            self.next_offsets[target] = base_offset + pending.record_count

    def _refuse(self, pending: Pending, result: Any) -> str:
        """Raise the error of a refused batch. If an earlier batch waits again, queue it and return the error's name."""
        where = f"{pending.topic}-{pending.partition}"
        code = result.error_code
        if code in _LOST and self._queue.has_before(pending):
            self._queue.put_back([pending])
            return str(code.name)
        if code in (ErrorCode.message_too_large, ErrorCode.record_list_too_large):
            raise Refused(
                code,
                f"appending to {where} was refused: a batch of {len(pending.batch)} bytes (records: {pending.record_count}) "
                f"is more than max.message.bytes of {pending.topic} allows. Make batches smaller, or that setting larger",
            )
        why = getattr(result, "error_message", None)
        self._check(code, f"appending to {where}" + (f" ({why})" if why else ""))
        raise AssertionError(code)

    def _check(self, code: ErrorCode, what: str) -> None:
        if code is ErrorCode.none:
            return
        name = code.name.replace("_", " ")
        if code in _ENDED:
            raise Refused(
                code,
                f"the transaction of {self._transactional_id!r} is over: {what} was refused ({name}). It was aborted after its timeout of {self._transaction_timeout_ms} ms, fenced by a successor, or decided without this part",
            )
        if code in _LOST:
            raise Refused(
                code,
                f"the transaction of {self._transactional_id!r} has lost a part: {what} was refused ({name}). Abort it and write it again",
            )
        raise Refused(code, f"{what} for {self._transactional_id!r}: {name}")

    def _start_over(self, failure: Exception) -> None:
        """Receive all outstanding responses, queue the unacknowledged batches again in order, and wait a little.

        Raises:
            Unavailable: no batch was acknowledged within the deadline.
            Refused: a response says that the transaction has ended or lost a batch.
        """
        for leader in list(self._leaders.values()):
            while leader.requests and not leader.connection.is_closed:
                try:
                    self._take_answer(leader)
                except Again:
                    continue
                except Unavailable:
                    break
            for batches in leader.requests:
                self._queue.put_back(batches)
            leader.connection.close()
        self._leaders.clear()
        if self._cluster.is_hurried:
            raise Unavailable(f"{self._transactional_id}: called off: {failure}") from failure
        if time.monotonic() - self._progress_at > self._deadline_s:
            raise Unavailable(
                f"{self._transactional_id}: nothing was taken for {self._deadline_s:g} s: {failure}"
            ) from failure
        time.sleep(BACKOFF_S)
        self._cluster.forget_metadata()  # the leaders may have changed

    def _close_leaders(self) -> None:
        for leader in self._leaders.values():
            self._cluster.give_back(leader.connection)
        self._leaders.clear()


def _speaks_second_dialect(coordinator: Connection) -> bool:
    return coordinator.features.get("transaction.version", 0) >= 2 and coordinator.speaks(
        ApiKey.PRODUCE, SECOND_DIALECT
    )
