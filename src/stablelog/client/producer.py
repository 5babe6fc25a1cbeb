"""One transaction's ready-made record batches, appended exactly once, whatever happens to answers and brokers.

A batch keeps its sequence number however often it is sent; the broker remembers a producer's last five batches of each
partition and answers a repeated one as it did the first time. So five requests may be under way, and none more.

Dialects (KIP-890): with `transaction.version` 2 the first batch adds its partition, and each end of a transaction
bumps the epoch; before that partitions are added by a request of their own. Source: docs of KIP-98, KIP-890.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.batch.header import SEQUENCE_MAX
from stablelog.client.cluster import PASSING, Again, Cluster, Target, module_of
from stablelog.client.connection import Connection
from stablelog.client.producing import Pending, produce_request, stamp
from stablelog.errors import Refused, Unavailable
from stablelog.wire.messages import message_class

PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 0, 22, 24, 26
IN_FLIGHT_MAX = 5  # what a broker remembers of a producer in a partition
REQUEST_SIZE_MAX = 4 << 20
QUEUE_SIZE_MAX = 8 << 20
TIMEOUT_MS = 60_000
BACKOFF_S = 0.05
SECOND_DIALECT = 12  # the version of Produce that adds partitions by itself

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


_index = attrgetter("index")


@dataclass(eq=False, slots=True)
class _Leader:
    """A connection of the producer's own to one leader, and what is under way on it, oldest first."""

    connection: Connection
    version: int
    requests: deque[list[Pending]] = field(default_factory=deque)


class _Queue:
    """The batches that are not under way, by partition. What it costs to send does not grow with their number."""

    def __init__(self) -> None:
        self.size = 0  # bytes
        self._waiting: dict[Target, deque[Pending]] = {}  # the oldest first; none is empty

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def targets(self) -> set[Target]:
        """The partitions that something waits for."""
        return set(self._waiting)

    def oldest(self) -> list[Pending]:
        """The oldest batch of each partition, the oldest of all first."""
        return sorted((batches[0] for batches in self._waiting.values()), key=_index)

    def has_before(self, pending: Pending) -> bool:
        """Whether an older batch of the same partition waits."""
        batches = self._waiting.get((pending.topic, pending.partition))
        return batches is not None and batches[0].index < pending.index

    def add(self, pending: Pending) -> None:
        """Queue a batch that is newer than all others."""
        self._waiting.setdefault((pending.topic, pending.partition), deque()).append(pending)
        self.size += len(pending.batch)

    def put_back(self, batches: Iterable[Pending]) -> None:
        """Queue batches again that were taken, where they belong."""
        for pending in batches:
            target = (pending.topic, pending.partition)
            self._waiting[target] = deque(sorted([pending, *self._waiting.get(target, ())], key=_index))
            self.size += len(pending.batch)

    def take(self, pending: Pending) -> None:
        """Take the oldest batch of a partition."""
        target = (pending.topic, pending.partition)
        batches = self._waiting[target]
        assert batches[0] is pending
        batches.popleft()
        if not batches:
            del self._waiting[target]
        self.size -= len(pending.batch)


class Producer:
    """A transactional producer of whole batches. One transaction at a time; `begin` comes first, and after an abort.

    After any exception from `append` or `flush` the transaction can only be aborted.

    Args:
        cluster: where.
        transactional_id: who; a predecessor of the same name is fenced by `begin`.
        transaction_timeout_ms: after which the coordinator aborts an open transaction by itself.
        deadline_s: how long a batch is tried again without any batch having been acknowledged.
        on_acknowledged: told of each acknowledged batch: what `append` returned for it, and its base offset; -1 if
            the broker knows that it has the batch, but not where.

    Attributes:
        producer_id: from `begin` on.
        producer_epoch: from `begin` on; another one after `end` in the second dialect.
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
        self.first_offsets: dict[Target, int] = {}
        self.next_offsets: dict[Target, int] = {}
        self._queue = _Queue()
        self._sequences: dict[Target, int] = {}  # what the next batch of a partition begins with
        self._added: set[Target] = set()
        self._index = 0
        self._progress_at = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether the transaction has a batch: one without is none for the coordinator."""
        return self._index > 0

    # --- begin and end ---

    def begin(self, *, deadline_s: float | None = None) -> None:
        """Take a producer id and epoch; whatever a predecessor of this name has open is aborted, and it is fenced.

        Args:
            deadline_s: how long to try, instead of the cluster's.

        Raises:
            Refused: the coordinator does not want this transactional id or timeout; says why.
            Unavailable: it does not answer within the deadline.
        """

        def attempt() -> Any:
            coordinator = self._cluster.coordinator(self._transactional_id)
            self._second_dialect = _speaks_second_dialect(coordinator)
            request_class = coordinator.request_class(INIT_PRODUCER_ID, newest=5)
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
        """Take over an open transaction with everything flushed, to end it: from another process, say."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._index = 1

    def end(self, *, commit: bool, deadline_s: float | None = None) -> None:
        """Commit or abort the transaction. To commit, everything must have been flushed.

        Args:
            commit: or abort.
            deadline_s: how long to try, instead of the cluster's.

        Raises:
            Refused: it was ended otherwise meanwhile: fenced, or timed out. Not committed.
            Unavailable: no answer within the deadline; it may have been ended or not.
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
            self.producer_id = -1  # what of it arrived is not known, nor which sequence comes next

    def _end(self, *, commit: bool) -> Any:
        coordinator = self._cluster.coordinator(self._transactional_id)
        self._second_dialect = _speaks_second_dialect(coordinator)
        request_class = coordinator.request_class(END_TXN, newest=5 if self._second_dialect else 4)
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
        """Close the connections. An open transaction stays open, for a joint commit or its timeout to end."""
        self._close_leaders()

    # --- appending ---

    def append(self, topic: str, partition: int, batch: bytearray) -> int:
        """Append one whole batch; its producer fields and CRC are filled in here.

        It may be under way when this returns: its bytes must stay as they are until `flush`.

        Returns:
            How many batches of the transaction came before it.

        Raises:
            Refused: this batch, or an earlier one, is not wanted; or the transaction has ended.
            Unavailable: no broker took it within the deadline.
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
            Refused: one is not wanted, or the transaction has ended.
            Unavailable: no broker took them within the deadline.
        """
        while self._unacknowledged():
            self._send(wait=True)

    def _unacknowledged(self) -> bool:
        return bool(self._queue) or any(leader.requests for leader in self._leaders.values())

    def _send(self, *, wait: bool) -> None:
        """Take one answer, if asked to wait; then put under way what may be."""
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
        """Requests to leaders that have room, with the oldest batches, one for each partition."""
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
            version = connection.version(PRODUCE, newest=None if self._second_dialect else SECOND_DIALECT - 1)
            leader = self._leaders[leader_id] = _Leader(connection, min(version, SECOND_DIALECT))
        body = produce_request(leader.version, self._transactional_id, self._transaction_timeout_ms, batches)
        flexible = message_class(PRODUCE, leader.version, "request").__flexible__
        leader.connection.send(PRODUCE, leader.version, body, flexible=flexible)
        leader.requests.append(batches)

    def _add_partitions(self) -> None:
        """First dialect: tell the coordinator of partitions before their first batch."""
        new = self._queue.targets - self._added
        if not new:
            return
        coordinator = self._cluster.coordinator(self._transactional_id)
        request_class = coordinator.request_class(ADD_PARTITIONS, newest=3)
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

    # --- answers ---

    def _take_answer(self, leader: _Leader) -> None:
        """Read the answer to the oldest request. What will pass is raised as Again, with its batches queued again."""
        response_class = message_class(PRODUCE, leader.version, "response")
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
        """Raise what a refused batch means; if it was only behind one that will be sent again, say so."""
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
        """Take every answer that still comes, queue the rest again in order, and wait a little.

        Raises:
            Unavailable: nothing has been acknowledged for as long as the deadline allows.
            Refused: an answer says that it is over.
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
        self._cluster.forget_metadata()  # the leaders may be others now

    def _close_leaders(self) -> None:
        for leader in self._leaders.values():
            self._cluster.give_back(leader.connection)
        self._leaders.clear()


def _speaks_second_dialect(coordinator: Connection) -> bool:
    return coordinator.features.get("transaction.version", 0) >= 2 and coordinator.speaks(
        PRODUCE, SECOND_DIALECT
    )
