"""Joint commits: several open transactions become one commit.

The *children* of a joint commit are transactions whose ids contain a key, a version and a run
(`wire.extension.children`). Any client writes them like any transaction, but no child can be committed alone. The
commit of all children with one key and version is one decision: the record of the key and the records of these children
go into the commit log as one batch, with one commit sequence. If there are many children, the record of the key alone
is the commit, and several batches with the records of the children follow it (`joint.accepted_children`). From then on it is
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

from stablelog.coordinators.transactions.answers import Decision, Draft
from stablelog.coordinators.transactions.ending import TransactionEnder
from stablelog.coordinators.transactions.joint.accepted_children import (
    ENDED_AT_ONCE,
    AcceptedChildren,
    end_child,
)
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer, committed_before
from stablelog.coordinators.transactions.joint.child_checks import CheckedChildren, ChildChecks, superseded
from stablelog.coordinators.transactions.joint.name_checks import (
    DIGEST_SIZE_MAX,
    check_belongs,
    check_names,
    is_of_run,
)
from stablelog.coordinators.transactions.joint.records import FOR_EVER, NO_ORDER, NO_VERSION, JointState
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import TV2, TransactionMetadata
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import Child, JointName, child_id, child_of

# The number of superseded runs that a key remembers: starts of the writer from which a later start has taken the open
# version of the key. A run that is no longer remembered could take this version over again.
SUPERSEDED_MAX: Final = 100
OFFSETS_TIMEOUT_MS: Final = 60_000
OFFSETS_PART: Final = "offsets"


class JointCommits:
    """The joint commits of one transaction group. Each commits several transactions, its children, together.

    Args:
        table: the state of the transaction group.
        ending: makes the decisions that end transactions.
        attempt_prefix: a part of the transactional ids of the children that the broker itself begins. It differs at
            every start of the broker, so these ids are new.

    Attributes:
        checks: checks whether children can be committed.
        accepted_children: the children of a long joint commit whose end is not decided yet.
        at_once: the number of children that one decision ends.
    """

    def __init__(self, table: TransactionTable, ending: TransactionEnder, attempt_prefix: int) -> None:
        self._table = table
        self._joints = table.joints
        self._ending = ending
        self.checks = ChildChecks(table)
        self.accepted_children = AcceptedChildren(table, ending)
        self.at_once = ENDED_AT_ONCE
        self._attempt_prefix = attempt_prefix
        self._attempt_count = 0

    # -- requests --------------------------------------------------------------------------------------------

    def begin_version(
        self,
        name: JointName,
        version: int,
        run: str | None = None,
        *,
        order: int = NO_ORDER,
        now_ms: int,
    ) -> Decision[JointAnswer]:
        """Begin a version of a joint commit for a run (a start of the writer), and tell whether the version is
        committed already. A joint commit commits several transactions, its children, together.

        An uncommitted version belongs to `run` from now on. The open children of this version that belong to other
        runs are aborted, and new children of those runs are refused. If the key has many children
        (`has_many_children`), this decision aborts none of them; the caller then passes the late children
        (`ChildChecks.is_late`) to `dismiss_children`, a few at a time.

        Args:
            name: transaction group and key of the joint commit.
            version: the version; each later commit with the key has a greater one.
            run: the start of the writer that begins the version; None only to ask whether the version is committed.
            order: a number that is greater for later runs. The request is refused if an earlier owner of the version
                has a greater number.
            now_ms: broker time, which never goes back, in ms.

        Returns:
            A decision whose answer says whether the version is committed, and what is known of the last commit.
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
        """Return the known children of a key of joint commits (the transactions to commit together), oldest first: the
        transactional id of each, and the parts of the id (key, version, run of the writer and others).
        """
        return self._joints.children(name)

    def has_many_children(self, name: JointName) -> bool:
        """Return whether a key of joint commits has more known children (its transactions) than `at_once`."""
        return self._joints.child_count(name) > self.at_once

    def dismiss_children(self, transactional_ids: Iterable[str], *, now_ms: int) -> Decision[None]:
        """Abort those of these children (transactions of joint commits) that are open, and forget the others. Children
        that are committed, even if their markers or the decisions about them are missing, stay as they are.
        """
        draft = Draft(now_ms)
        for transactional_id in transactional_ids:
            if self._table.get(transactional_id) is not None:
                self._dismiss(transactional_id, draft)
        return draft.decision(None)

    def may_be_dismissed(self, transactional_id: str) -> bool:
        """Return whether `dismiss_children` would abort or forget this child (a transaction of a joint commit). It
        would not if the child is committed.
        """
        txn = self._table.get(transactional_id)
        return (
            txn is not None
            and not txn.state.is_decided
            and not self.accepted_children.contains(transactional_id)
        )

    def check_commit(self, name: JointName, version: int, run: str | None = None) -> JointAnswer | None:
        """Return the answer to a CommitJoint request if it needs no check of the children (transactions), for example
        because the version is committed already. `run` is the start of the writer; None if none is named.

        Returns:
            The answer; None if the children have to be checked.
        """
        state = self._joints.get(name)
        try:
            check_names(name, version, run)
            if version <= state.last_version:
                return committed_before(state, version)
            if run and state.open_version == version and run != state.run:
                raise superseded(name, version, run, state)
            self._table.sequences.check_commit_allowed()
        except RefusedError as refused:
            return JointAnswer(ErrorCode(refused.code), str(refused))
        return None

    def commit(
        self,
        name: JointName,
        version: int,
        children: Sequence[ChildShown],
        *,
        checked: CheckedChildren | None = None,
        run: str | None = None,
        retention_ms: int = FOR_EVER,
        digest: str | None = None,
        now_ms: int,
    ) -> Decision[JointAnswer]:
        """Commit the children of a joint commit, its transactions, with one commit sequence (number of the commit). If
        one of them cannot be committed, decide nothing.

        If more than `at_once` children are open, this decision only accepts them: it records the commit with their
        names, and the caller then carries out the decisions of `end_accepted`, which end them. The commit also aborts
        all other children of this version and of earlier versions. If the key has many children (`has_many_children`),
        no decision aborts them; the caller then passes the late children (`ChildChecks.is_late`) to `dismiss_children`,
        a few at a time.

        Args:
            name: transaction group and key of the joint commit.
            version: its version. For the last committed version of the key and all earlier ones, `committed` is True in
                the answer.
            children: the children; there may be none.
            checked: the results of `ChildChecks.check_children` for all children, if they are current; None if the
                children were not checked.
            run: the start of the writer that commits. The commit is refused if another start of the writer has begun
                this version since.
            retention_ms: how long the key is remembered after its last commit; -1 for ever.
            digest: the writer's description of the content of this commit, returned to later requests. The coordinator
                does not interpret it.
            now_ms: broker time, which never goes back, in ms.
        """
        known = self.check_commit(name, version, run)
        if known is not None:
            return Decision(known)
        try:
            if checked is None:
                checked = self.checks.begin_checks(name)
                self.checks.check_children(name, version, children, checked)
            if len((digest or "").encode()) > DIGEST_SIZE_MAX:
                raise RefusedError(ErrorCode.invalid_request, f"the digest has over {DIGEST_SIZE_MAX} bytes")
        except RefusedError as refused:
            return Decision(JointAnswer(ErrorCode(refused.code), str(refused)))
        assert len(checked.snapshots) == len(children)
        draft = Draft(now_ms)
        is_long = len(checked.opened) > self.at_once
        value = JointState(
            version,
            self._table.sequences.assign_next(),
            retention_ms=max(retention_ms, FOR_EVER),
            update_ms=now_ms,
            committed_run=run or "",
            digest=digest or "",
            accepted=tuple(checked.identities) if is_long else (),
        )
        self._joints.put(name, value, draft.records)
        if is_long:
            self.accepted_children.accept_children(name, checked.opened)
        else:
            for transactional_id in checked.opened:
                end_child(
                    self._ending, transactional_id, self._table.require_state(transactional_id), value, draft
                )
        if not self.has_many_children(name):
            for transactional_id, child in self.children(name):
                if child.version <= version:
                    self._dismiss(transactional_id, draft)
        return draft.decision(replace(committed_before(value, version), committed=False))

    def end_accepted(self, *, now_ms: int) -> Decision[None]:
        """Decide the commit of the next accepted children of a long joint commit, at most `at_once`. An accepted child
        is a transaction whose joint commit is recorded, but whose own end is not decided yet.

        The caller repeats this until `accepted_children.is_pending` is False.
        """
        draft = Draft(now_ms)
        self.accepted_children.end_next_children(draft, self.at_once)
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
        """Abort children (transactions) of a version of a joint commit, unless the version is committed.

        If `run` (a start of the writer) is given, abort also all other children of that run, and refuse children that
        the run begins later. If the key has many children (`has_many_children`), no decision aborts the children of the
        run; the caller then passes them to `dismiss_children`, a few at a time.

        Args:
            name: transaction group and key of the joint commit.
            version: the version of the joint commit; each later commit with the key has a greater one.
            children: the children that the request names, at most `at_once`. The caller passes more of them in further
                calls.
            run: the run whose children are all aborted; None to abort only `children`.
            now_ms: broker time, which never goes back, in ms.
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
        """Return the answer to an AbortJoint request that is refused, or that comes after the commit; None if it can be
        carried out. `run` is the start of the writer whose transactions are aborted, if the request names one.
        """
        state = self._joints.get(name)
        try:
            check_names(name, version, run)
        except RefusedError as refused:
            return JointAnswer(ErrorCode(refused.code), str(refused))
        return committed_before(state, version) if version <= state.last_version else None

    def is_open(self, shown: ChildShown) -> bool:
        """Return whether a child of a joint commit has an open transaction, and the request (`shown`) names the
        producer id and epoch of this transaction.
        """
        transactional_id, *identity = shown
        txn = self._table.get(transactional_id)
        return txn is not None and txn.client == tuple(identity) and txn.state is TransactionState.ONGOING

    def is_ongoing(self, transactional_id: str) -> bool:
        """Return whether the child with this transactional id has an open transaction that is neither committed nor
        aborted yet.
        """
        txn = self._table.get(transactional_id)
        return txn is not None and txn.state is TransactionState.ONGOING

    def is_committing(self, producer_id: int) -> bool:
        """Return whether the transaction of a producer id is committed, alone or together with others, and still lacks
        markers.
        """
        owner = self._table.owner_of_open(producer_id)
        if owner is None:
            return False
        return self._table.require_state(
            owner
        ).state is TransactionState.PREPARE_COMMIT or self.accepted_children.contains(owner)

    # -- children --------------------------------------------------------------------------------------------

    def finish_replay(self, draft: Draft) -> None:
        """Finish the replay of the commit log at a start of the broker: make the decisions about children (transactions
        of joint commits) that were still to be made when the broker stopped.

        The commit of many children is one record that names them, and further decisions end them, a few in each. If the
        record is durable, and the end of some of its children was not decided yet, these children are committed now.
        Children that can no longer be committed (`ChildChecks.is_late`) are aborted or forgotten. All these decisions
        follow from durable records. If another crash loses the decisions, the next start makes them again.

        Args:
            draft: the decision that is being made, to which the records and markers of these decisions are added.
        """
        self.accepted_children.finish_replay(draft)
        for transactional_id, child in self._joints.all_children():
            if self.checks.is_late(child):
                self._dismiss(transactional_id, draft)

    def check_end(self, transactional_id: str, *, commit: bool) -> bool:
        """Check an EndTxn request, and return whether its transactional id is that of a child: a transaction that only
        a joint commit can commit, together with others.

        A child's producer epoch ends with its transaction, even with TV1. The commit of a joint commit names each child
        with its epoch. So if a child was aborted and its producer has begun another transaction, the joint commit
        cannot include that transaction by mistake.

        Raises:
            RefusedError: the request would commit a child alone.
        """
        child = child_of(transactional_id)
        if child is not None and commit:
            raise RefusedError(
                ErrorCode.invalid_txn_state,
                f"the transaction of {transactional_id} cannot be committed alone: it belongs to version "
                f"{child.version} of joint commit {child.name.key!r}. Send CommitJoint for all of its transactions",
            )
        return child is not None

    def open_offsets(
        self, name: JointName, version: int, partition: TopicPartition, *, now_ms: int
    ) -> Decision[ChildShown]:
        """Open a child (a transaction) of a joint commit that the broker itself writes: it contains offsets of consumer
        groups, which are committed together with the other children.

        The child is open at once in `partition` of the offsets log. The caller must not write to the partition before
        the decision's record is durable: after a crash another producer could otherwise get the child's producer id.
        The child belongs to no run (start of a writer). If it is not committed, it times out.
        """
        draft = Draft(now_ms)
        self._attempt_count += 1
        attempt = f"{self._attempt_prefix}.{self._attempt_count}"
        transactional_id = child_id(name.key, version, "", OFFSETS_PART, attempt, group=name.group)
        txn = TransactionMetadata(
            *self._ending.first_identity(transactional_id, draft.records),
            OFFSETS_TIMEOUT_MS,
            TransactionState.ONGOING,
            PartitionSet({partition}),
            update_ms=now_ms,
            start_ms=now_ms,
            transaction_version=TV2,
        )
        self._table.put(transactional_id, txn, draft.records)
        return draft.decision(ChildShown(transactional_id, *txn.client))

    def _dismiss(self, transactional_id: str, draft: Draft) -> None:
        """Abort a child (a transaction of a joint commit) if it is open. Otherwise forget it, now or when its markers
        are written.

        An accepted child stays as it is: its joint commit is recorded, so it is committed, although the decision that
        ends it is still to come.
        """
        txn = self._table.require_state(transactional_id)
        if self.accepted_children.contains(transactional_id):
            return
        if txn.state is TransactionState.ONGOING:
            self._ending.fence(transactional_id, txn, draft, owner_may_ask=False)
        elif not txn.state.is_decided:
            self._table.forget(transactional_id, draft.records)


def _added(superseded: tuple[str, ...], run: str) -> tuple[str, ...]:
    known = (*superseded, run) if run and run not in superseded else superseded
    return known[-SUPERSEDED_MAX:]
