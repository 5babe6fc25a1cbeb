"""Joint commits: several open transactions become one commit.

The *children* of a joint commit are transactions whose ids contain a key, a version and a run
(`wire.extension.children`). Any client writes them like any transaction, but no child can be committed alone. The
commit of all children with one key and version is one decision: the record of the key and the records of these children
go into the commit log as one batch, with one commit sequence. If there are many children, the record of the key alone
is the commit, and several batches with the records of the children follow it (`joint.acceptance`). From then on it is
like any commit; the markers of all children have that sequence.

The key's record holds the last committed version. This has these effects:

- A repeated commit gets the answer of the first one, even after a restart, and decides nothing.
- Of two commits of the same version the first wins. A version below the last one counts as committed.
- The commit aborts the other children of its version and of earlier versions: those that it does not name. Children of
  these versions that begin or write later are refused.
- Every client can ask for the run of the last commit, and for its digest, the writer's own description of the content.
  So a writer that has computed the records of the same version a second time can compare them with the committed ones.

A child is committed under an epoch that its producer does not have, so the producer can do nothing more. When the
child's markers are written, the coordinator forgets the child: the record of the key shows that its version is
committed.

A *run* is one start of the writer of the children. The *order* of a run tells earlier runs from later ones.

Source: docs/decisions/0006-joint-commit.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.decisions import Decision, Draft
from stablelog.coordinators.transactions.ending import Ending
from stablelog.coordinators.transactions.joint.acceptance import ENDED_AT_ONCE, Acceptance, end_child
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer, committed_before
from stablelog.coordinators.transactions.joint.checks import (
    DIGEST_SIZE_MAX,
    check_belongs,
    check_names,
    is_of_run,
)
from stablelog.coordinators.transactions.joint.child_checks import Checked, ChildChecks, superseded
from stablelog.coordinators.transactions.joint.records import FOR_EVER, NO_ORDER, NO_VERSION, JointState
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.states import State
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import TV2, Transaction
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import Child, JointName, child_id, child_of

# The number of superseded runs that a key remembers: starts of the writer from which a later start has taken the open
# version of the key. A run that is no longer remembered could take this version over again.
SUPERSEDED_MAX: Final = 100
OFFSETS_TIMEOUT_MS: Final = 60_000
OFFSETS_PART: Final = "offsets"


class JointCommits:
    """The joint commits of one commit log.

    Args:
        table: the state of the transaction group.
        ending: ends transactions.
        attempt_prefix: a part of the transactional ids of the children that the broker begins itself. It differs at
            every start of the broker, so that these ids are new.

    Attributes:
        checks: checks the children.
        acceptance: the children of a long joint commit whose end is not decided.
        at_once: the number of children that one decision ends.
    """

    def __init__(self, table: TransactionTable, ending: Ending, attempt_prefix: int) -> None:
        self._table = table
        self._joints = table.joints
        self._ending = ending
        self.checks = ChildChecks(table)
        self.acceptance = Acceptance(table, ending)
        self.at_once = ENDED_AT_ONCE
        self._attempt_prefix = attempt_prefix
        self._attempt_count = 0

    # -- requests --------------------------------------------------------------------------------------------

    def begin(
        self,
        name: JointName,
        version: int,
        run: str | None = None,
        *,
        order: int = NO_ORDER,
        now_ms: int,
    ) -> Decision[JointAnswer]:
        """Begin a version of a joint commit for `run` (a start of the writer). The answer says whether the version is
        committed already. If it is not, it belongs to `run` from now on.

        The open children of this version that belong to other runs are then aborted, and new children of those runs
        are refused. If the key has many children (`has_many_children`), this decision aborts none of them. The caller
        then passes those that are late (`ChildChecks.is_late`) to `dismiss`, a few at a time.

        If `order` is lower than the order of a run that had the version before, `run` is an earlier start of the
        writer, and the request is refused.
        """
        draft = Draft(now_ms)
        state = self._joints.get(name)
        answer = JointAnswer(last_version=state.last_version)
        try:
            check_names(name, version, run)
            if version <= state.last_version:
                answer = replace(committed_before(state, version), last_version=state.last_version)
            elif run and (version, run) != (state.open_version, state.run):
                self._take_over(name, state, version, run, order, draft)
        except RefusedError as refused:
            answer = replace(answer, error=ErrorCode(refused.code), message=str(refused))
        return draft.decision(answer)

    def _take_over(
        self, name: JointName, state: JointState, version: int, run: str, order: int, draft: Draft
    ) -> None:
        former: tuple[str, ...] = ()
        if state.open_version == version:
            if run in state.superseded or NO_ORDER < order < state.order:
                raise superseded(name, version, run, state)
            former = _added(state.superseded, state.run)
            order = max(order, state.order)
        value = replace(
            state, open_version=version, run=run, superseded=former, order=order, update_ms=draft.now_ms
        )
        self._joints.put(name, value, draft.records)
        if not self.has_many_children(name):
            for transactional_id, child in self.children(name):
                if self.checks.is_late(child):
                    self._dismiss(transactional_id, draft)

    def children(self, name: JointName) -> list[tuple[str, Child]]:
        """The known children of a key, with their transactional ids, oldest first."""
        return self._joints.children(name)

    def has_many_children(self, name: JointName) -> bool:
        """Whether the coordinator knows so many children of a key that one decision does not end all of them."""
        return self._joints.child_count(name) > self.at_once

    def dismiss(self, transactional_ids: Iterable[str], *, now_ms: int) -> Decision[None]:
        """Abort those of these children that are open, and forget the others, except for those that are committed."""
        draft = Draft(now_ms)
        for transactional_id in transactional_ids:
            if self._table.get(transactional_id) is not None:
                self._dismiss(transactional_id, draft)
        return draft.decision(None)

    def may_be_dismissed(self, transactional_id: str) -> bool:
        """Whether `dismiss` would change anything for this child."""
        txn = self._table.get(transactional_id)
        return txn is not None and not txn.state.is_decided and not self.acceptance.has(transactional_id)

    def check_commit(self, name: JointName, version: int, run: str | None = None) -> JointAnswer | None:
        """Return the answer to a request for a joint commit if it does not depend on the children, for example because
        this version is committed already; None if it depends on them.
        """
        state = self._joints.get(name)
        try:
            check_names(name, version, run)
            if version <= state.last_version:
                return committed_before(state, version)
            if run and state.open_version == version and run != state.run:
                raise superseded(name, version, run, state)
            self._table.sequences.check()
        except RefusedError as refused:
            return JointAnswer(ErrorCode(refused.code), str(refused))
        return None

    def commit(
        self,
        name: JointName,
        version: int,
        children: Sequence[ChildShown],
        *,
        checked: Checked | None = None,
        run: str | None = None,
        retention_ms: int = FOR_EVER,
        digest: str | None = None,
        now_ms: int,
    ) -> Decision[JointAnswer]:
        """Commit the children of a joint commit, with one commit sequence. If one cannot be committed, decide nothing.

        If more than `at_once` of the children are open, this decision only accepts them. The caller then carries out
        the decisions of `end_accepted`. The commit also aborts all other children of this version and of earlier
        versions. If the key has many children (`has_many_children`), no decision aborts them. The caller then passes
        the late children (`ChildChecks.is_late`) to `dismiss`, a few at a time.

        Args:
            name: group and key of the joint commit.
            version: its version. At or below the last committed version, the answer is `committed`.
            children: the children; there may be none.
            checked: the results of `ChildChecks.check_all` for all children, if they are current; None if they were
                not checked.
            run: the start of the writer that commits. The commit is refused if another start of the writer has begun
                this version since.
            retention_ms: the time after its last commit during which the key is remembered.
            digest: the writer's description of what this commit contains, returned to later requests. The coordinator
                does not interpret it.
            now_ms: broker time.
        """
        known = self.check_commit(name, version, run)
        if known is not None:
            return Decision(known)
        try:
            if checked is None:
                checked = self.checks.begin(name)
                self.checks.check_all(name, version, children, checked)
            if len((digest or "").encode()) > DIGEST_SIZE_MAX:
                raise RefusedError(ErrorCode.invalid_request, f"a digest has at most {DIGEST_SIZE_MAX} bytes")
        except RefusedError as refused:
            return Decision(JointAnswer(ErrorCode(refused.code), str(refused)))
        assert len(checked.snapshots) == len(children)
        draft = Draft(now_ms)
        is_long = len(checked.opened) > self.at_once
        value = JointState(
            version,
            self._table.sequences.take(),
            retention_ms=max(retention_ms, FOR_EVER),
            update_ms=now_ms,
            committed_run=run or "",
            digest=digest or "",
            accepted=tuple(checked.identities) if is_long else (),
        )
        self._joints.put(name, value, draft.records)
        if is_long:
            self.acceptance.begin(name, checked.opened)
        else:
            for transactional_id in checked.opened:
                end_child(self._ending, transactional_id, self._table.known(transactional_id), value, draft)
        if not self.has_many_children(name):
            for transactional_id, child in self.children(name):
                if child.version <= version:
                    self._dismiss(transactional_id, draft)
        return draft.decision(replace(committed_before(value, version), committed=False))

    def end_accepted(self, *, now_ms: int) -> Decision[None]:
        """Decide the end of the next accepted children of a long joint commit, at most `at_once`.

        The caller repeats this until `acceptance.is_pending` is False.
        """
        draft = Draft(now_ms)
        self.acceptance.end_some(draft, self.at_once)
        return draft.decision(None)

    def abort(
        self,
        name: JointName,
        version: int,
        children: Sequence[ChildShown],
        *,
        run: str | None = None,
        now_ms: int,
    ) -> Decision[JointAnswer]:
        """Abort children of a version of a joint commit, unless the version is committed.

        With `run`, abort also all other children of that run, and refuse the children that the run begins later. If the
        key has many children (`has_many_children`), no decision aborts these. The caller then passes them to `dismiss`,
        a few at a time.

        Args:
            name: group and key of the joint commit.
            version: its version.
            children: the named children, at most `at_once`. The caller passes more of them in further calls.
            run: a start of the writer.
            now_ms: broker time.
        """
        known = self.check_abort(name, version, run)
        try:
            for shown in children:
                check_belongs(name, version, shown)
        except RefusedError as refused:
            known = JointAnswer(ErrorCode(refused.code), str(refused))
        if known is not None:
            return Decision(known)
        draft = Draft(now_ms)
        state = self._joints.get(name)
        if run and (state.open_version == NO_VERSION or (state.open_version, state.run) == (version, run)):
            given_up = _added(state.superseded, run)
            value = replace(state, open_version=version, run="", superseded=given_up, update_ms=now_ms)
            self._joints.put(name, value, draft.records)
        for transactional_id, *identity in children:
            txn = self._table.get(transactional_id)
            if txn is not None and txn.client == tuple(identity):
                self._dismiss(transactional_id, draft)
        if run and not self.has_many_children(name):
            for transactional_id, child in self.children(name):
                if is_of_run(child, version, run):
                    self._dismiss(transactional_id, draft)
        return draft.decision(JointAnswer())

    def check_abort(self, name: JointName, version: int, run: str | None = None) -> JointAnswer | None:
        """Return the answer to an abort that is refused or comes after the commit; None if the abort can be carried
        out.
        """
        state = self._joints.get(name)
        try:
            check_names(name, version, run)
        except RefusedError as refused:
            return JointAnswer(ErrorCode(refused.code), str(refused))
        return committed_before(state, version) if version <= state.last_version else None

    def is_open(self, shown: ChildShown) -> bool:
        """Whether a child of a request is an open transaction of the producer that the request names."""
        transactional_id, *identity = shown
        txn = self._table.get(transactional_id)
        return txn is not None and txn.client == tuple(identity) and txn.state is State.ONGOING

    def is_ongoing(self, transactional_id: str) -> bool:
        """Whether a child is an open transaction."""
        txn = self._table.get(transactional_id)
        return txn is not None and txn.state is State.ONGOING

    def is_committing(self, producer_id: int) -> bool:
        """Whether it is decided that the open transaction of a producer id is committed, alone or as a child, and its
        markers are not all written.
        """
        owner = self._table.owner_of_open(producer_id)
        if owner is None:
            return False
        return self._table.known(owner).state is State.PREPARE_COMMIT or self.acceptance.has(owner)

    # -- children --------------------------------------------------------------------------------------------

    def loaded(self, draft: Draft) -> None:
        """Finish the replay of the commit log: make the decisions that earlier ones have left for later, and that the
        broker did not make before its last stop.

        These decisions follow from durable records, so another crash may lose them.
        """
        self.acceptance.loaded(draft)
        for transactional_id, child in self._joints.all_children():
            if self.checks.is_late(child):
                self._dismiss(transactional_id, draft)

    def check_end(self, transactional_id: str, *, commit: bool) -> bool:
        """Return whether the id is that of a child of a joint commit.

        A child's producer epoch ends with its transaction, even with TV1.

        A commit request names each child with its epoch. So if a child was aborted and its producer has begun another
        transaction, the commit cannot include that other transaction by mistake.

        Raises:
            RefusedError: the request would commit a child alone.
        """
        child = child_of(transactional_id)
        if child is not None and commit:
            raise RefusedError(
                ErrorCode.invalid_txn_state,
                f"{transactional_id} cannot be committed alone: it is a part of version {child.version} of the joint "
                f"commit {child.name.key!r}. Send CommitJoint, which commits all its parts together",
            )
        return child is not None

    def open_offsets(
        self, name: JointName, version: int, partition: TopicPartition, *, now_ms: int
    ) -> Decision[ChildShown]:
        """Open a child that the broker itself writes: consumer group offsets that are committed with the other
        children.

        The child is open at once in the offsets log's `partition`. The caller must not write to the partition before
        the record is durable: after a crash the child's producer id could otherwise be given to another producer. The
        child belongs to no run. A child that is not committed times out.
        """
        draft = Draft(now_ms)
        self._attempt_count += 1
        attempt = f"{self._attempt_prefix}.{self._attempt_count}"
        transactional_id = child_id(name.key, version, "", OFFSETS_PART, attempt, group=name.group)
        txn = Transaction(
            *self._ending.first_identity(transactional_id, draft.records),
            OFFSETS_TIMEOUT_MS,
            State.ONGOING,
            PartitionSet({partition}),
            update_ms=now_ms,
            start_ms=now_ms,
            transaction_version=TV2,
        )
        self._table.put(transactional_id, txn, draft.records)
        return draft.decision(ChildShown(transactional_id, *txn.client))

    def _dismiss(self, transactional_id: str, draft: Draft) -> None:
        """Abort a child of a joint commit if it is open. Otherwise forget it, now or when its markers are written.

        A child that is accepted is committed, although its end is not decided yet: leave it.
        """
        txn = self._table.known(transactional_id)
        if self.acceptance.has(transactional_id):
            return
        if txn.state is State.ONGOING:
            self._ending.fence(transactional_id, txn, draft, owner_may_ask=False)
        elif not txn.state.is_decided:
            self._table.forget(transactional_id, draft.records)


def _added(superseded: tuple[str, ...], run: str) -> tuple[str, ...]:
    known = (*superseded, run) if run and run not in superseded else superseded
    return known[-SUPERSEDED_MAX:]
