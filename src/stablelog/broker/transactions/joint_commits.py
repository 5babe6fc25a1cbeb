"""The requests of joint commits, carried out in turns of the event loop.

A joint commit may have thousands of children. The coordinator checks or ends a few of them in each turn. Other requests
are served in between. Only the commits of the same transaction group wait until a long joint commit is decided, because
the markers of a partition stand in the order of the commit sequences.

The decisions of a request are all made, even if the connection of the request is lost meanwhile. A stop of the broker
waits for them. They wait for no disk, so a stop does not wait for space on a full disk.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.broker.loop.turns import Turn, in_turns
from stablelog.broker.runtime import Runtime
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.coordinators.transactions.decisions import Decision
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer
from stablelog.coordinators.transactions.joint.checks import check_belongs, is_of_run
from stablelog.coordinators.transactions.joint.child_checks import Checked
from stablelog.coordinators.transactions.joint.coordinator import JointCommits
from stablelog.errors import RefusedError, StablelogError, UnavailableError
from stablelog.wire.extension.children import Child, JointName

if TYPE_CHECKING:
    from stablelog.wire.extension.joint import BeginJointRequest, CommitJointRequest

# How often the children of a commit are checked again because some of them have changed meanwhile.
CHECKS_MAX = 10

# A future that is done when the markers of a decision, and of all earlier ones, are written; None if it has no markers.
Done = asyncio.Future[None] | None


class Decided(NamedTuple):
    """The answer to a request whose decisions are made.

    Attributes:
        answer: the answer. It may be sent when the decisions are durable.
        done: is done when their markers are written.
        group: the transaction group.
    """

    answer: JointAnswer
    done: Done
    group: TransactionGroup

    async def wait_until_carried_out(self) -> JointAnswer:
        """Wait until the decisions are durable and their markers are written. Return the answer."""
        await self.group.wait_until_carried_out(self.done)
        return self.answer


class JointRequests:
    """Makes the decisions of the requests about one version of a joint commit.

    The caller holds the lock of the connection, so that the requests of one connection are decided in their order, and
    releases it before it waits until a decision is durable.

    Args:
        group: the transaction group.
        name: the name of the transaction group, and the key of the joint commit.
        version: the version of the joint commit.
    """

    def __init__(
        self,
        group: TransactionGroup,
        name: JointName,
        version: int,
        runtime: Runtime,
    ) -> None:
        self._group = group
        self._name = name
        self._version = version
        self._tasks = runtime.tasks
        self._now_ms = runtime.clock.now_ms

    @property
    def _joint(self) -> JointCommits:
        return self._group.coordinator.joint

    # -- requests ------------------------------------------------------------------------------------------------

    async def begin(self, request: "BeginJointRequest") -> Decided:
        """Begin a version, and abort the open children of other runs of it."""

        async def decide() -> tuple[JointAnswer, Done]:
            decision = self._joint.begin(
                self._name, self._version, request.run, order=request.order, now_ms=self._now_ms()
            )
            done = self._group.begin_to_carry_out(decision)
            return decision.answer, await self._dismiss_late() or done

        return await self._to_its_end(decide)

    async def commit(self, request: "CommitJointRequest", children: Sequence[ChildShown]) -> Decided:
        """Commit these children, and abort the others of this version and of earlier versions."""

        async def decide() -> tuple[JointAnswer, Done]:
            async with self._group.committing:
                checked = await self._checked(children, request.run)
                decision = self._joint.commit(
                    self._name,
                    self._version,
                    children,
                    checked=checked,
                    run=request.run,
                    retention_ms=request.retention_ms,
                    digest=request.digest,
                    now_ms=self._now_ms(),
                )
                done = self._group.begin_to_carry_out(decision)
                done = await self._end_accepted() or done
            return decision.answer, await self._dismiss_late() or done

        return await self._to_its_end(decide, is_long=len(children) > self._joint.at_once)

    async def abort(self, children: Sequence[ChildShown], run: str | None) -> Decided:
        """Abort these children and, if `run` is given, all others of this run."""
        async for shown in in_turns(children, at_once=self._joint.at_once):
            check_belongs(self._name, self._version, shown)

        async def decide() -> tuple[JointAnswer, Done]:
            at_once, done = self._joint.at_once, None
            async for begin in in_turns(range(0, max(len(children), 1), at_once)):
                some = children[begin : begin + at_once]
                decision = self._joint.abort(self._name, self._version, some, run=run, now_ms=self._now_ms())
                done = self._group.begin_to_carry_out(decision) or done
                if decision.answer != JointAnswer():
                    return decision.answer, done
            if run:
                done = await self._dismiss(lambda child: is_of_run(child, self._version, run)) or done
            return JointAnswer(), done

        return await self._to_its_end(decide, is_long=len(children) > self._joint.at_once)

    async def has_open(self, children: Sequence[ChildShown], run: str | None = None) -> bool:
        """Whether one of these children is an open transaction; with `run`, also whether any child of that run is."""
        joint = self._joint
        async for shown in in_turns(children):
            if joint.is_open(shown):
                return True
        if run:
            async for transactional_id, child in in_turns(joint.children(self._name)):
                if is_of_run(child, self._version, run) and joint.is_ongoing(transactional_id):
                    return True
        return False

    # -- steps ---------------------------------------------------------------------------------------------------

    async def _to_its_end(
        self, decide: Callable[[], Coroutine[Any, Any, tuple[JointAnswer, Done]]], *, is_long: bool = False
    ) -> Decided:
        """Make the decisions of a request."""
        if is_long or self._joint.has_many_children(self._name):
            answer, done = await self._tasks.run_for_request("a joint commit", decide)
        else:
            answer, done = await decide()
        return Decided(answer, done, self._group)

    async def _checked(self, children: Sequence[ChildShown], run: str | None) -> Checked | None:
        """Check many children in turns. Return None for few children, and for a request whose answer does not depend
        on the children: the decision then makes all checks.

        Raises:
            RefusedError: a child cannot be committed; or the children have changed again and again during the checks.
        """
        if len(children) <= self._joint.at_once:
            return None
        checks = self._joint.checks
        for _ in range(CHECKS_MAX):
            if self._joint.check_commit(self._name, self._version, run) is not None:
                return None
            checked = checks.begin(self._name)
            try:
                async for shown in in_turns(children):
                    checks.check_all(self._name, self._version, [shown], checked)
            except RefusedError:
                if self._joint.check_commit(self._name, self._version, run) is not None:
                    return None
                raise
            if checks.are_current(self._name, checked):
                return checked
        raise RefusedError(
            ErrorCode.concurrent_transactions,
            f"children of version {self._version} of joint commit {self._name.key!r} change while they are committed: stop "
            "their writers, and try again",
        )

    async def _end_accepted(self) -> Done:
        """Carry out the decisions that end the accepted children, if there are any."""
        done = None
        try:
            turn = Turn()
            while self._joint.acceptance.is_pending:
                if turn.is_over:
                    await turn.end()
                decision = self._joint.end_accepted(now_ms=self._now_ms())
                done = self._group.begin_to_carry_out(decision)
        except StablelogError:
            raise  # The disk has failed, and the broker stops.
        except Exception as error:
            # While accepted children are left, no other transaction of the group is committed.
            self._tasks.report_unexpected("a joint commit", self._tasks.broker, error)
            raise UnavailableError("the broker stops, because a joint commit failed unexpectedly") from error
        return done

    async def _dismiss_late(self) -> Done:
        """Abort the children that can never be committed, if the key has so many children that the decision has left
        them.
        """
        return await self._dismiss(self._joint.checks.is_late)

    async def _dismiss(self, is_wanted: Callable[[Child], bool]) -> Done:
        """Abort the open children of the key that `is_wanted` names, and forget those that are not open. Do nothing if
        the key has few children.
        """
        done = None
        some: list[str] = []
        if not self._joint.has_many_children(self._name):
            return None
        async for transactional_id, child in in_turns(self._joint.children(self._name)):
            if is_wanted(child) and self._joint.may_be_dismissed(transactional_id):
                some.append(transactional_id)
            if len(some) == self._joint.at_once:
                done = self._end(some) or done
                some = []
        return self._end(some) or done

    def _end(self, transactional_ids: Sequence[str]) -> Done:
        decision: Decision[None] = self._joint.dismiss(transactional_ids, now_ms=self._now_ms())
        return self._group.begin_to_carry_out(decision)
