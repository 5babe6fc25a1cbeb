"""Producer of encoded record batches: it appends each batch exactly once despite failures, either in transactions or as
an idempotent producer.

A batch keeps its sequence number when the producer sends it again. The broker remembers the last five batches of a
producer in each partition, and answers a repeated batch with its first response. So the producer has at most five
requests in flight to each leader.

In transaction version 2 (TV2), the first batch in a partition adds the partition to the transaction, and the end of
each transaction increments the producer epoch. In transaction version 1 (TV1), a separate request adds partitions.
Source: KIP-98, KIP-890.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.batch.header import SEQUENCE_MAX
from stablelog.batch.stamping import stamp_producer
from stablelog.client.core.batch_queue import BatchQueue, PendingBatch
from stablelog.client.core.call_limits import GRACE_S
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.producer_errors import LOST_BATCH, TOO_LARGE, producer_error, too_large_error
from stablelog.client.core.steps import NOW, Pause, Steps
from stablelog.client.core.topic_ids import TopicIds
from stablelog.client.core.transaction_requests import (
    ProducerIdentity,
    add_partitions_request,
    end_request,
    init_producer_request,
)
from stablelog.client.responses import RETRIABLE_CODES, RetriableError, is_retriable
from stablelog.errors import RefusedError, UnavailableError
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.message_classes import message_class
from stablelog.wire.produce import encode_produce_request

IN_FLIGHT_MAX = 5  # the broker remembers this many batches of a producer for each partition
REQUEST_SIZE_MAX = 4 << 20
QUEUE_SIZE_MAX = 8 << 20
TIMEOUT_MS = 60_000
BACKOFF_S = 0.05
TV2_PRODUCE = 12  # the first version of Produce that adds partitions to the transaction
TV1_PRODUCE = TV2_PRODUCE - 1


@dataclass(eq=False, slots=True)
class _Leader:
    """The producer's connection to the leader of some partitions, and the batches of each request in flight (sent and
    not answered), oldest request first.
    """

    connection: BrokerConnection
    version: int
    requests: deque[list[PendingBatch]] = field(default_factory=deque)


class BatchProducer:
    """A producer of batches that the caller has encoded, with at most one open transaction.

    Call `begin` first, and again after an abort. If `append` or `flush` raises, a transaction can only be aborted, and
    a producer without transactions can only be closed.

    Args:
        cluster: the brokers.
        transactional_id: the transactional id. `begin` fences an earlier producer with the same id. None for an
            idempotent producer without transactions, which has no `end`.
        transaction_timeout_ms: the time in ms after which the coordinator aborts an open transaction.
        deadline_s: how long batches are retried while none is acknowledged, in seconds.
        on_acknowledged: called for each acknowledged batch with the number that `append` returned and the base offset,
            which is -1 if the broker had the batch already and has forgotten its offset.

    Attributes:
        producer_id: the producer id; -1 before `begin`.
        producer_epoch: the producer epoch; -1 before `begin`. In transaction version 2, `end` changes it.
        record_count: how many records the broker has acknowledged since `begin`.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str | None,
        *,
        transaction_timeout_ms: int = TIMEOUT_MS,
        deadline_s: float = TIMEOUT_MS / 1000,
        on_acknowledged: Callable[[int, int], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._name = transactional_id or "an idempotent producer"  # for messages
        self._transaction_timeout_ms = transaction_timeout_ms
        self._deadline_s = deadline_s
        self._on_acknowledged = on_acknowledged
        self.producer_id = -1
        self.producer_epoch = -1
        self._is_tv2 = False
        self._leaders: dict[int, _Leader] = {}
        self._reset()

    def _reset(self) -> None:
        self.record_count = 0
        self._queue = BatchQueue()
        # The base sequence number of the next batch of each partition.
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._topic_ids = TopicIds()
        self._index = 0
        self._progress_at = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether the transaction has a batch. Before the first batch, the coordinator does not know the transaction,
        so it needs no end.
        """
        return self._index > 0

    @property
    def is_tv2(self) -> bool:
        """Whether the coordinator supports transaction version 2; known after `begin`."""
        return self._is_tv2

    # --- begin and end ---

    def begin(self, *, deadline_s: float | None = None) -> Steps[None]:
        """Get a producer id and epoch. With a transactional id, this fences an earlier producer with the same id, and
        aborts its open transaction.

        Args:
            deadline_s: how long to retry, in seconds; None for the cluster's deadline.

        Raises:
            RefusedError: the broker refuses the transactional id, the timeout or the producer; the message says why.
            UnavailableError: the broker does not respond within the deadline.
        """
        what = f"beginning {self._name}"
        answer = yield from self._cluster.retrying(what, self._request_producer_id, deadline_s)
        self.close()
        self._reset()
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def _request_producer_id(self) -> Steps[Any]:
        if self._transactional_id is None:
            connection = yield from self._cluster.any_connection()  # each broker gives ids of producers
        else:
            connection = yield from self._coordinator()
        answer = yield from connection.request_steps(
            init_producer_request(self._transactional_id, self._transaction_timeout_ms)
        )
        self._check_code(answer.error_code, "InitProducerId")
        if answer.producer_id < 0 or answer.producer_epoch < 0:
            raise RetriableError(f"the response of {connection.address} has no producer id")
        return answer

    @property
    def identity(self) -> ProducerIdentity:
        """The identity of a producer with a transactional id, for requests to its coordinator."""
        assert self._transactional_id is not None
        return ProducerIdentity(self._transactional_id, self.producer_id, self.producer_epoch)

    def _coordinator(self) -> Steps[BrokerConnection]:
        """Return the connection to the coordinator, and store which transaction version it supports."""
        assert self._transactional_id is not None
        coordinator = yield from self._cluster.coordinator(self._transactional_id)
        level = coordinator.features.get("transaction.version", 0)
        self._is_tv2 = level >= 2 and coordinator.supports_api(ApiKey.PRODUCE, TV2_PRODUCE)
        return coordinator

    def resume(self, producer_id: int, producer_epoch: int) -> None:
        """Resume the open transaction of another process, so that this producer can end it. All batches of the
        transaction must be acknowledged.
        """
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._index = 1

    def end(self, *, commit: bool, deadline_s: float | None = None) -> Steps[None]:
        """Commit or abort the transaction. Before a commit, every batch must be flushed.

        Args:
            commit: True commits, False aborts.
            deadline_s: how long to retry, in seconds; None for the cluster's deadline.

        Raises:
            RefusedError: the transaction was not committed, because it was fenced or has timed out.
            UnavailableError: no response within the deadline; the transaction may or may not have ended.
        """
        assert self._transactional_id is not None, "an idempotent producer has no transaction"
        assert not (commit and self._unacknowledged()), "not every batch is acknowledged: call flush first"
        self.close()
        if self.has_begun:
            answer = yield from self._cluster.retrying(
                f"ending the transaction of {self._transactional_id}",
                lambda: self._request_end(commit=commit),
                deadline_s,
            )
            if self._is_tv2 and answer.producer_id >= 0:
                self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
                self._sequences.clear()
        sequences = self._sequences
        self._reset()
        if commit:
            self._sequences = sequences
        else:
            # After an abort it is unknown which batches arrived, so the next sequence numbers are unknown. The producer
            # has to call `begin` before the next transaction.
            self.producer_id = -1

    def _request_end(self, *, commit: bool) -> Steps[Any]:
        coordinator = yield from self._coordinator()
        answer = yield from coordinator.request_steps(
            end_request(self.identity, is_tv2=self._is_tv2, commit=commit)
        )
        self._check_code(answer.error_code, "EndTxn")
        return answer

    def close(self) -> None:
        """Return the connections to the cluster object. An open transaction is not ended."""
        while self._leaders:  # no connection is given back twice, also if an exception interrupts this
            _, leader = self._leaders.popitem()
            self._cluster.return_connection(leader.connection)

    # --- appending ---

    def append(self, topic: str, partition: int, batch: bytearray, *, more: bool = False) -> Steps[int]:
        """Send one encoded batch to a partition, as the next batch of the producer. This method writes the producer's
        fields and the CRC into the batch.

        The batch may still be in flight on return, so its bytes must not change until `flush` returns.

        Args:
            topic: the topic's name.
            partition: the partition's index.
            batch: the bytes of the batch.
            more: whether the caller appends another batch at once, so that both can be sent in one request.

        Returns:
            The number of the batch since `begin`, from 0.

        Raises:
            RefusedError: the broker refuses this batch or an earlier one, or the transaction has ended.
            UnavailableError: no broker accepted the batch within the deadline.
        """
        assert self.producer_id >= 0, "the producer has no id yet: call begin first"
        target = (topic, partition)
        sequence = self._sequences.get(target, 0)
        is_transactional = self._transactional_id is not None
        count = stamp_producer(
            batch, self.producer_id, self.producer_epoch, sequence, transactional=is_transactional
        )
        self._sequences[target] = (sequence + count) & SEQUENCE_MAX
        if not self._unacknowledged():
            self._progress_at = yield NOW
        index = self._index
        self._queue.add_batch(PendingBatch(index, topic, partition, batch, sequence, count))
        self._index += 1
        if not more:
            yield from self._send(wait=False)
        while self._queue.size > QUEUE_SIZE_MAX:
            yield from self._send(wait=True)
        return index

    def flush(self) -> Steps[None]:
        """Wait until the broker has acknowledged every batch.

        Raises:
            RefusedError: the broker refuses a batch, or the transaction has ended.
            UnavailableError: no broker accepted the batches within the deadline.
        """
        while self._unacknowledged():
            yield from self._send(wait=True)

    def _unacknowledged(self) -> bool:
        return bool(self._queue) or any(leader.requests for leader in self._leaders.values())

    def _send(self, *, wait: bool) -> Steps[None]:
        """Send batches, up to the maximum of requests in flight. With `wait`, first receive a response."""
        now = yield NOW
        with self._cluster.limit_waits_until(max(now, self._progress_at + self._deadline_s) + GRACE_S):
            yield from self._send_in_time(wait=wait)

    def _send_in_time(self, *, wait: bool) -> Steps[None]:
        try:
            busy = next((leader for leader in self._leaders.values() if leader.requests), None)
            if wait and busy is not None:
                yield from self._receive_response(busy)
            yield from self._send_oldest_batches()
        except (RetriableError, RefusedError, UnavailableError) as failure:
            if not is_retriable(failure):
                raise
            yield from self._requeue_unacknowledged(failure)

    def _send_oldest_batches(self) -> Steps[None]:
        """Send the oldest batch of each partition, except to leaders that have the maximum of requests in flight."""
        if not self._queue:
            return
        if self._transactional_id is not None and not self._is_tv2:
            yield from self._add_partitions(self._transactional_id)
        requests: dict[int, list[PendingBatch]] = {}
        sizes: dict[int, int] = defaultdict(int)
        for pending in self._queue.oldest_batches():
            leader_id = yield from self._cluster.leader(pending.topic, pending.partition)
            self._topic_ids.check_topic((yield from self._cluster.topic(pending.topic)))
            leader = self._leaders.get(leader_id)
            size = sizes[leader_id] + len(pending.batch)
            is_too_large = leader_id in requests and size > REQUEST_SIZE_MAX
            if is_too_large or (leader is not None and len(leader.requests) >= IN_FLIGHT_MAX):
                continue
            requests.setdefault(leader_id, []).append(pending)
            sizes[leader_id] = size
        for batches in requests.values():
            for pending in batches:
                self._queue.remove_oldest(pending)
        try:
            while requests:
                leader_id = next(iter(requests))
                yield from self._send_request(leader_id, requests[leader_id])
                del requests[leader_id]
        finally:  # queue the batches of requests that were not sent because of an error
            for batches in requests.values():
                self._queue.requeue_batches(batches)

    def _send_request(self, leader_id: int, batches: list[PendingBatch]) -> Steps[None]:
        leader = self._leaders.get(leader_id)
        if leader is None:
            address = self._cluster.address_of(leader_id)
            connection = yield from self._cluster.lend_connection(address)
            yield from connection.negotiate()
            version = connection.newest_version(
                ApiKey.PRODUCE, newest=TV2_PRODUCE if self._is_tv2 else TV1_PRODUCE
            )
            leader = self._leaders[leader_id] = _Leader(connection, version)
        body = encode_produce_request(
            leader.version,
            self._transactional_id,
            self._transaction_timeout_ms,
            [((pending.topic, pending.partition), pending.batch) for pending in batches],
        )
        flexible = message_class(ApiKey.PRODUCE, leader.version, "request").__flexible__
        yield from leader.connection.send_steps(ApiKey.PRODUCE, leader.version, body, flexible=flexible)
        leader.requests.append(batches)

    def _add_partitions(self, transactional_id: str) -> Steps[None]:
        """In transaction version 1, ask the coordinator to add new partitions to the transaction. This is done before
        their first batch is sent.
        """
        new = self._queue.targets - self._added
        if not new:
            return
        coordinator = yield from self._cluster.coordinator(transactional_id)
        answer = yield from coordinator.request_steps(add_partitions_request(self.identity, new))
        for topic in answer.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                if result.partition_error_code is not ErrorCode.operation_not_attempted:
                    what = f"adding {topic.name}-{result.partition_index} to it"
                    self._check_code(result.partition_error_code, what)
        self._added |= new

    # --- responses ---

    def _receive_response(self, leader: _Leader) -> Steps[None]:
        """Receive the response of a leader to its oldest request. If the errors in it are retriable, queue the failed
        batches again and raise RetriableError.
        """
        response_class = message_class(ApiKey.PRODUCE, leader.version, "response")
        data = yield from leader.connection.receive_steps(flexible=response_class.__flexible__)
        answer = leader.connection.decode_response(response_class, data)
        yield from leader.connection.set_throttle(answer.throttle_time.total_seconds())
        batches = {(p.topic, p.partition): p for p in leader.requests.popleft()}
        failed: list[str] = []
        now = yield NOW
        for topic in answer.responses:
            for result in topic.partition_responses:
                pending = batches.pop((topic.name, result.index), None)
                if pending is None:
                    failed.append(
                        f"the response names {topic.name}-{result.index}, which the request does not"
                    )
                    continue
                if result.error_code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                    self._progress_at = now
                    self._acknowledge(pending, result.base_offset)
                elif result.error_code in RETRIABLE_CODES:
                    failed.append(f"{topic.name}-{result.index}: {result.error_code.name}")
                    self._queue.requeue_batches([pending])
                else:
                    failed.append(self._requeue_or_raise(pending, result))
        if batches:
            failed.append("the response does not name every partition of the request")
            self._queue.requeue_batches(list(batches.values()))
        if failed:
            raise RetriableError("; ".join(failed))

    def _acknowledge(self, pending: PendingBatch, base_offset: int) -> None:
        self.record_count += pending.record_count
        if self._on_acknowledged is not None:
            self._on_acknowledged(pending.index, base_offset)

    def _requeue_or_raise(self, pending: PendingBatch, result: Any) -> str:
        """Handle a batch that the broker has refused. If the reason is only that an earlier batch is missing, which is
        queued again, queue this one again, too, and return the name of the error for a message. Otherwise raise it.
        """
        code = result.error_code
        if code in LOST_BATCH and self._queue.has_older(pending):
            self._queue.requeue_batches([pending])
            return str(code.name)
        what = f"appending to {pending.topic}-{pending.partition}"
        if code in TOO_LARGE:
            raise too_large_error(code, what, pending)
        why = getattr(result, "error_message", None)
        self._check_code(code, what + (f" ({why})" if why else ""))
        raise AssertionError(code)

    def _check_code(self, code: ErrorCode, what: str) -> None:
        """Raise the error for a refusal, unless the code is NONE. `what` names the refused work in the message."""
        if code is not ErrorCode.none:
            raise producer_error(code, what, self._transactional_id, self._transaction_timeout_ms)

    def _requeue_unacknowledged(self, failure: Exception) -> Steps[None]:
        """After a failure, receive all outstanding responses. Queue the unacknowledged batches again in their order,
        and pause.

        Raises:
            UnavailableError: no batch was acknowledged within the deadline.
            RefusedError: according to a response, the transaction has ended or lost a batch.
        """
        for leader in list(self._leaders.values()):
            while leader.requests and not leader.connection.is_closed:
                try:
                    yield from self._receive_response(leader)
                except RetriableError:
                    continue
                except UnavailableError:
                    break
            for batches in leader.requests:
                self._queue.requeue_batches(batches)
            leader.connection.close()
        self._leaders.clear()
        if self._cluster.are_retries_cancelled:
            raise UnavailableError(f"{self._name}: the call was cancelled: {failure}") from failure
        now = yield NOW
        is_late = self._cluster.until is not None and now > self._cluster.until - GRACE_S
        if is_late or now - self._progress_at > self._deadline_s:
            raise UnavailableError(
                f"{self._name}: no batch was acknowledged for {self._deadline_s:g} s. Last failure: {failure}"
            ) from failure
        yield Pause(BACKOFF_S)
        self._cluster.forget_metadata()  # request new metadata, because the leaders may have changed
