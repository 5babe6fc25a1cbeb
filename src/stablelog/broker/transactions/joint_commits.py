"""The requests of joint commits, carried out in turns of the event loop.

A joint commit may have tens of thousands of children. The coordinator checks or ends a few of them in each turn. Other
requests are served in between. Only the commits of the same transaction group wait until a long joint commit is
decided, because the markers of a partition stand in the order of the commit sequences.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.turns import Turn, in_turns
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.coordinators.transactions.decisions import Decision
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer
from stablelog.coordinators.transactions.joint.checks import check_belongs, is_of_run, is_superseded
from stablelog.coordinators.transactions.joint.coordinator import JointCommits
from stablelog.coordinators.transactions.transaction import Transaction
from stablelog.errors import Refused
from stablelog.wire.extension.children import Child, JointName
from stablelog.wire.extension.joint import BeginJointRequest, CommitJointRequest


class JointRequests:
    """Carries out the requests of joint commits in one transaction group.

    Args:
        group: the transaction group.
        name: its name, and the key of the joint commit.
        version: the version of the joint commit.
        tasks: runs a long commit to its end, even if the connection of its request is lost.
        now_ms: broker time.
    """

    def __init__(
        self,
        group: TransactionGroup,
        name: JointName,
        version: int,
        *,
        tasks: Tasks,
        now_ms: Callable[[], int],
    ) -> None:
        self._group = group
        self._name = name
        self._version = version
        self._tasks = tasks
        self._now_ms = now_ms

    @property
    def _joint(self) -> JointCommits:
        return self._group.coordinator.joint

    async def begin(self, request: BeginJointRequest) -> JointAnswer:
        """Begin a version, and abort the open children of other runs of it."""
        run = request.run or ""
        has_more = self._joint.has_many_children(self._name)
        decision = self._joint.begin(
            self._name, self._version, request.run, order=request.order, now_ms=self._now_ms()
        )
        answer = await self._group.carry_out(decision)
        if has_more and decision.records:
            await self._dismiss(lambda child: is_superseded(child, self._version, run))
        return answer

    async def commit(self, request: CommitJointRequest, children: Sequence[ChildShown]) -> JointAnswer:
        """Commit these children, and abort the others of this version and of earlier versions."""
        try:
            checked = await self._checked(children, request.run)
        except Refused as refused:
            answer = self._known(request.run) or JointAnswer(refused.code, str(refused))
            return await self._group.carry_out(Decision(answer))
        async with self._group.committing:
            has_more = self._joint.has_many_children(self._name)
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
            if self._joint.acceptance.is_pending:
                done = await self._tasks.for_request("a joint commit", self._end_accepted)
        if done is None:
            await self._group.journal.settled()
        else:
            await done
        if has_more and decision.records:
            await self._dismiss(lambda child: child.version <= self._version)
        return decision.answer

    def _known(self, run: str | None) -> JointAnswer | None:
        """The answer to a commit that does not depend on its children."""
        return self._joint.check_commit(self._name, self._version, run)

    async def _checked(self, children: Sequence[ChildShown], run: str | None) -> dict[str, Transaction]:
        """Check many children in turns. Few are left to the decision, which checks those that were not checked before.

        Raises:
            Refused: a child cannot be committed, perhaps because the whole commit was decided before.
        """
        if len(children) <= self._joint.at_once or self._known(run) is not None:
            return {}
        return {
            shown.transactional_id: self._joint.check_child(self._name, self._version, shown)
            async for shown in in_turns(children)
        }

    async def _end_accepted(self) -> "asyncio.Future[None] | None":
        """Carry out the decisions that end the accepted children. Return when all of them are in the commit log.

        Returns:
            A future that is done when the markers of the last decision, and of all earlier ones, are written.
        """
        done = None
        # If an exception left accepted children undecided, no commit of the group could follow.
        with self._tasks.guard("a joint commit", self._tasks.broker):
            turn = Turn()
            while self._joint.acceptance.is_pending:
                if turn.is_over:
                    await turn.end()
                decision = self._joint.end_accepted(now_ms=self._now_ms())
                done = self._group.begin_to_carry_out(decision)
        return done

    async def abort(self, children: Sequence[ChildShown], run: str | None) -> JointAnswer:
        """Abort these children and, if `run` is given, all others of this run."""
        async for shown in in_turns(children, at_once=self._joint.at_once):
            check_belongs(self._name, self._version, shown)
        at_once = self._joint.at_once
        has_more = self._joint.has_many_children(self._name)
        for begin in range(0, max(len(children), 1), at_once):
            some = children[begin : begin + at_once]
            decision = self._joint.abort(self._name, self._version, some, run=run, now_ms=self._now_ms())
            await self._group.carry_out(decision)
            if decision.answer != JointAnswer():
                return decision.answer
        if has_more and run:
            await self._dismiss(lambda child: is_of_run(child, self._version, run))
        return JointAnswer()

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

    async def _dismiss(self, is_wanted: Callable[[Child], bool]) -> None:
        """Abort the open children of the key that `is_wanted` names, and forget those that are not open."""
        some: list[str] = []
        async for transactional_id, child in in_turns(self._joint.children(self._name)):
            if is_wanted(child) and self._joint.may_be_dismissed(transactional_id):
                some.append(transactional_id)
            if len(some) == self._joint.at_once:
                await self._end(some)
                some = []
        if some:
            await self._end(some)

    async def _end(self, transactional_ids: Iterable[str]) -> None:
        await self._group.carry_out(self._joint.dismiss(transactional_ids, now_ms=self._now_ms()))
