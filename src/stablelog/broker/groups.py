"""The consumer groups of the broker: carries out the decisions of the group coordinator.

The records of a decision are appended to the offsets log (`__consumer_offsets`). The responses of a decision are sent
once the log is durable up to these records. These may also be responses to earlier requests of other members, which
have waited for the decision.
"""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.broker.durability.journal import Journal
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.runtime import Runtime
from stablelog.coordinators.consumer_groups.answers import GroupDecision
from stablelog.coordinators.consumer_groups.consumer_protocol.model import TopicLookup
from stablelog.coordinators.consumer_groups.consumer_protocol.target_assignment import compute_target
from stablelog.coordinators.consumer_groups.coordinator import GroupCoordinator
from stablelog.errors import RefusedError
from stablelog.log.partition import Partition

Token = asyncio.Future[Any]


class BrokerGroups:
    """The consumer groups: their coordinator, the offsets log, and the requests that wait for a response.

    Args:
        coordinator: makes the decisions.
        journal: the offsets log (`__consumer_offsets`), with the responses that wait until the log is durable.
        runtime: the tasks and the clock of the broker.
    """

    def __init__(self, coordinator: GroupCoordinator, journal: Journal, runtime: Runtime) -> None:
        self.coordinator = coordinator
        self.journal = journal
        self._tasks = runtime.tasks
        self._now_ms = runtime.clock.now_ms
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._waiting: set[Token] = set()  # The tokens of requests that wait for a response.
        self._is_settling = (
            False  # Whether a later turn of the event loop settles offsets of ended transactions.
        )
        self._has_ended = False  # Whether the broker stops, so that no request waits any more.
        self._assigning: set[str] = set()  # The groups whose target assignment is being computed in a thread.

    def load(self) -> None:
        """Rebuild the consumer groups and their committed offsets from the offsets log."""
        coordinator = self.coordinator

        def ended(producer_id: int, commit: bool) -> None:
            coordinator.txn_ended(producer_id, commit=commit)
            while not coordinator.table.offsets.is_all_applied:
                coordinator.table.offsets.apply_ended()

        self.journal.replay(coordinator.table.replay, ended, coordinator.table.offsets.begin_log)
        self.apply_decision(coordinator.finish_replay(self._now_ms()))

    def apply_decision(self, decision: GroupDecision[Any]) -> None:
        """Append the records of a decision of the group coordinator to the offsets log. The responses of the decision
        are sent when its records are durable.
        """
        self.journal.append(decision.records)
        answers = decision.answers
        if answers:
            self.journal.run_when_durable(lambda: _set_results(answers))
        self.set_timer()

    async def carry_out_decision(self, decision: GroupDecision[Any]) -> Any:
        """Append the records of a decision of the group coordinator to the offsets log, wait until they are durable,
        and return the decision's response to the request that has caused it.
        """
        self.apply_decision(decision)
        await self.wait_until_durable()
        return decision.answer

    def assign_soon(self, group_id: str, topics: TopicLookup) -> None:
        """Compute the target assignment of a group (which member gets which partitions) in a thread, if the group needs
        a new one and its computation takes long.

        Args:
            group_id: a group of the consumer group protocol (KIP-848).
            topics: finds the topics that members subscribe to.
        """
        if group_id not in self._assigning and self.coordinator.consumers.is_planned(group_id):
            self._assigning.add(group_id)
            self._tasks.start("assignment of a consumer group", self._assign, group_id, topics)

    async def _assign(self, group_id: str, topics: TopicLookup) -> None:
        consumers = self.coordinator.consumers
        try:
            while (plan := consumers.begin_plan(group_id, topics)) is not None:
                target = await in_thread(None, compute_target, plan, topics)
                self.apply_decision(consumers.apply_target(group_id, plan, target))
        finally:
            self._assigning.discard(group_id)

    async def wait_until_durable(self) -> None:
        """Wait until the records of all decisions of the group coordinator so far are durable."""
        await self.journal.wait_until_durable()

    def on_high_watermark(self, partition: Partition) -> None:
        """Send the responses whose records are durable now, if `partition` is the offsets log.

        Called when the high watermark of a partition has moved.
        """
        if partition is self.journal.partition:
            self.journal.run_effects()

    def new_token(self) -> Token:
        """Return a token, by which the group coordinator names a request that must wait, such as JoinGroup. The token
        is a future that gets the response.
        """
        return asyncio.get_running_loop().create_future()

    async def wait_for_response(self, token: Token) -> Any:
        """Wait for the response to a request, whose `token` is a future that gets the response.

        Raises:
            RefusedError: the broker stops. The client sends the request again.
        """
        self._waiting.add(token)
        if self._has_ended:
            self.end_waits()
        try:
            return await token
        finally:
            self._waiting.discard(token)

    def end_waits(self) -> None:
        """Refuse the requests that wait for other members of their groups, because the broker stops."""
        self._has_ended = True
        for token in self._waiting:
            if not token.done():
                token.set_exception(
                    RefusedError(
                        ErrorCode.coordinator_not_available, "the broker stops: send the request again"
                    )
                )

    def transaction_ended(self, producer_id: int, *, commit: bool) -> None:
        """Apply the end of a transaction, for which the offsets log has got a marker, to the consumers' offsets that
        the transaction contains. After a commit marker, these offsets take effect; after an abort marker, they are
        dropped.

        Args:
            producer_id: the producer id of the transaction.
            commit: whether the marker is a commit marker.
        """
        self.coordinator.txn_ended(producer_id, commit=commit)
        self._apply_ended_soon()
        self.set_timer()

    def _apply_ended_soon(self) -> None:
        """Apply the offsets of ended transactions: commit or drop them. If there are too many for one turn of the event
        loop, the rest is applied in further turns.
        """
        if not self._is_settling and not self.coordinator.table.offsets.is_all_applied:
            self._is_settling = True
            self._tasks.soon("consumer groups", self._apply_ended)

    def _apply_ended(self) -> None:
        self._is_settling = False
        self.coordinator.table.offsets.apply_ended()
        self._apply_ended_soon()

    def set_timer(self) -> None:
        """Set the timer to the next deadline of the group coordinator, such as the end of a member's session."""
        deadline_ms = self.coordinator.next_deadline_ms()
        if deadline_ms == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline_ms
        if deadline_ms is not None:
            delay_s = max(deadline_ms - self._now_ms(), 0) / 1000 + 0.001
            self._timer = self._tasks.later("consumer groups", delay_s, self._tick)

    def _tick(self) -> None:
        self._timer_ms = None
        self.apply_decision(self.coordinator.tick(self._now_ms()))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()


def _set_results(answers: list[tuple[Any, Any]]) -> None:
    for token, answer in answers:
        if not token.done():
            token.set_result(answer)
