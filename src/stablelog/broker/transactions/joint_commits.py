"""Carries out the requests about joint commits (BeginJoint, CommitJoint, AbortJoint) in turns of the event loop.

A joint commit decides many transactions, its children, at once, and may have thousands of them. The coordinator checks
or ends a few children in each turn of the event loop, so that other requests are served in between. Only the other
commits of the same transaction group wait until a long joint commit is decided, because the commit markers in a
partition stand in the order of the commit sequences (numbers of the commits in the group).

If the client disconnects during a request, the broker still makes all decisions of the request, and a stop of the broker
waits for these decisions. Making a decision never waits for the disk, so a full disk does not delay a stop.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.broker.loop.turns import Turn, in_turns
from stablelog.broker.runtime import Runtime
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer
from stablelog.coordinators.transactions.joint.child_checks import CheckedChildren
from stablelog.coordinators.transactions.joint.coordinator import JointCommits
from stablelog.coordinators.transactions.joint.name_checks import check_belongs, is_of_run
from stablelog.errors import RefusedError, StablelogError, UnavailableError
from stablelog.wire.extension.children import Child, JointName

if TYPE_CHECKING:
    from stablelog.wire.extension.joint import BeginJointRequest, CommitJointRequest

# The maximum number of times that the children of one commit are checked, if some of them change during each check.
CHECKS_MAX = 10

# A future that is done when the markers of a decision, and of all earlier ones, are written; None if it has no markers.
Done = asyncio.Future[None] | None


class Decided(NamedTuple):
    """The outcome of a request about a joint commit, which commits several transactions together: all decisions of the
    request are made, and may not be durable yet.

    Attributes:
        answer: the answer to the client. The caller sends it after `wait_until_carried_out`.
        done: a future that is done when the markers of the decisions are written; None if they have no markers.
        group: the transaction group (topics and producers with one order of commits) that carries the decisions out.
    """

    answer: JointAnswer
    done: Done
    group: TransactionGroup

    async def wait_until_carried_out(self) -> JointAnswer:
        """Wait until the decisions are durable and their markers are written. Return the answer to the client."""
        await self.group.wait_until_carried_out(self.done)
        return self.answer


class JointRequests:
    """Decides the requests about one version of a joint commit, which commits several transactions (its children)
    together.

    The caller holds the lock of the client's connection during each call, so that the requests of a connection are
    decided in their order. It releases the lock before it waits until the decisions are durable.

    Args:
        group: the transaction group, the topics and producers whose commits have one order.
        name: the name of the transaction group, and the key, by which the client names its joint commits.
        version: the version of the joint commit; each later commit with the key has a greater one.
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
        """Begin the version of the joint commit for the run (start of the writer) that the request names, and abort the
        open children of other runs of this version. Children are the transactions that the joint commit commits
        together.

        Args:
            request: the BeginJoint request.
        """

        async def decide() -> tuple[JointAnswer, Done]:
            decision = self._joint.begin_version(
                self._name, self._version, request.run, order=request.order, now_ms=self._now_ms()
            )
            done = self._group.begin_to_carry_out(decision)
            return decision.answer, await self._dismiss_late() or done

        return await self._to_its_end(decide)

    async def commit(self, request: "CommitJointRequest", children: Sequence[ChildShown]) -> Decided:
        """Commit these children (transactions) together, and abort all other children of this version of the joint
        commit and of earlier versions.

        Args:
            request: the CommitJoint request.
            children: the children to commit, as the request names them.

        Raises:
            RefusedError: a child cannot be committed, or the children have changed during each of several attempts to
                check them.
            UnavailableError: a decision failed unexpectedly, and the broker stops.
        """

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
        """Abort these children (the transactions that the joint commit commits together) and, if `run` is given, all
        other children of this run.

        Args:
            children: the children to abort, as the request names them.
            run: the run, a start of the writer; None to abort only `children`.

        Raises:
            RefusedError: a child belongs to another joint commit or version.
        """
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
        """Return whether any of these children (the transactions that the joint commit commits together), or any child
        of the given run, is open.

        Args:
            children: the children to look at.
            run: the run, a start of the writer; None to look only at `children`.
        """
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
        """Make all decisions of a request about a joint commit (of several transactions together), and return their
        outcome.

        If the decisions may be many, a separate task makes them: the task of the request is cancelled when its client
        disconnects, and decisions that were begun must be completed nevertheless.

        Args:
            decide: makes the decisions.
            is_long: whether the request names so many transactions that a separate task makes the decisions.
        """
        if is_long or self._joint.has_many_children(self._name):
            answer, done = await self._tasks.run_for_request("a joint commit", decide)
        else:
            answer, done = await decide()
        return Decided(answer, done, self._group)

    async def _checked(self, children: Sequence[ChildShown], run: str | None) -> CheckedChildren | None:
        """Check, in turns of the event loop, whether many children (the transactions that the joint commit commits
        together) can be committed.

        Args:
            children: the children to commit, as the request names them.
            run: the run (start of the writer) that the request names; None if it names none.

        Returns:
            The checks, which the decision uses. None if the decision itself makes all checks, because there are few
            children or because the answer does not depend on them.

        Raises:
            RefusedError: a child cannot be committed; or the children have changed again and again during the checks.
        """
        if len(children) <= self._joint.at_once:
            return None
        checks = self._joint.checks
        for _ in range(CHECKS_MAX):
            if self._joint.check_commit(self._name, self._version, run) is not None:
                return None
            checked = checks.begin_checks(self._name)
            try:
                async for shown in in_turns(children):
                    checks.check_children(self._name, self._version, [shown], checked)
            except RefusedError:
                if self._joint.check_commit(self._name, self._version, run) is not None:
                    return None
                raise
            if checks.are_current(self._name, checked):
                return checked
        raise RefusedError(
            ErrorCode.concurrent_transactions,
            f"joint commit {self._name.key!r}, version {self._version}, is refused: the transactions "
            "that it commits together change again and again meanwhile. Stop their writers, and try "
            "again",
        )

    async def _end_accepted(self) -> Done:
        """End the accepted children of a long joint commit: its record commits these transactions, but the decision
        that ends each of them is still to be made.

        Returns:
            A future that is done when the markers of these children are written; None if there are no such markers.
        """
        done = None
        try:
            turn = Turn()
            while self._joint.accepted_children.is_pending:
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
        """Abort the late children: open transactions that no joint commit can commit any more, because their version is
        committed or belongs to another run (start of the writer).

        If they are few, the decision about the joint commit has aborted them already, and nothing is done here.

        Returns:
            A future that is done when the abort markers are written; None if there are none.
        """
        return await self._dismiss(self._joint.checks.is_late)

    async def _dismiss(self, is_wanted: Callable[[Child], bool]) -> Done:
        """Dismiss those children of the joint commit's key (the transactions to commit together) for which `is_wanted`
        returns True: abort those that are open, and forget the others. If the key has few children, the decision about
        the request has removed them already, and nothing is done here.

        Returns:
            A future that is done when the abort markers are written; None if there are none.
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
        decision: Decision[None] = self._joint.dismiss_children(transactional_ids, now_ms=self._now_ms())
        return self._group.begin_to_carry_out(decision)
