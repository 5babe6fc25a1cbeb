"""Joint commits: several open transactions become one commit.

The *children* of a joint commit are transactions whose ids contain a key, a version and a run
(`wire.extension.children`). Any client writes them like any transaction, but no child can be committed alone. The
commit of all children with one key and version is one decision: the record of the key and the records of these children
go into the commit log as one batch, with one commit sequence. From then on it is like any commit; the markers of all
children have that sequence.

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
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.decisions import Decision, Draft
from stablelog.coordinators.transactions.ending import Ending
from stablelog.coordinators.transactions.joint.records import FOR_EVER, NO_ORDER, NO_VERSION, JointState
from stablelog.coordinators.transactions.joint.table import UNKNOWN
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.refusals import turned_away
from stablelog.coordinators.transactions.states import Event, State
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import NO_SEQUENCE, TV2, Identity, Transaction
from stablelog.errors import Refused
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import VERSION_MAX, JointName, child_id, child_of
from stablelog.wire.extension.transaction_groups import is_group_name

# The maximum size of a key in bytes, so that the transactional ids of its children are not too long.
KEY_SIZE_MAX: Final = 255
RUN_SIZE_MAX: Final = 100
DIGEST_SIZE_MAX: Final = 100
# The number of superseded runs that a key remembers: starts of the writer from which a later start has taken the open
# version of the key. A run that is no longer remembered could take this version over again.
SUPERSEDED_MAX: Final = 100
# The number of children of other runs that one decision aborts when a run takes a version over.
DISMISSED_AT_ONCE: Final = 100
OFFSETS_TIMEOUT_MS: Final = 60_000
OFFSETS_PART: Final = "offsets"


class ChildShown(NamedTuple):
    """A child in a request: its transactional id, and the producer id and epoch that the request has for it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class JointAnswer:
    """Answer to BeginJoint, CommitJoint or AbortJoint.

    Attributes:
        error: why the request was refused.
        message: the reason as text.
        committed: whether this version of the key, or a later one, was committed before this request.
        commit_sequence: the commit sequence of this version, if it is the last committed version of the key; -1
            otherwise.
        last_version: the last committed version, in an answer to BeginJoint; -1 if there is none.
        run: the run (start of the writer) that committed this version of the key; empty if unknown.
        digest: the writer's description of what it committed under this version; empty if unknown.
    """

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    committed: bool = False
    commit_sequence: int = NO_SEQUENCE
    last_version: int = NO_VERSION
    run: str = ""
    digest: str = ""


class JointCommits:
    """The joint commits of one commit log.

    Args:
        table: the state of the transaction group.
        ending: ends transactions.
        attempt_prefix: a part of the transactional ids of the children that the broker begins itself. It differs at
            every start of the broker, so that these ids are new.
    """

    def __init__(self, table: TransactionTable, ending: Ending, attempt_prefix: int) -> None:
        self._table = table
        self._joints = table.joints
        self._ending = ending
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

        The open children of this version that belong to other runs are then aborted, at most DISMISSED_AT_ONCE of them.
        If the decision has records, the caller passes the rest (`superseded_children`) to `dismiss`, in slices of that
        size. New children of those runs are refused. If `order` is lower than the order of a run that had the version
        before, `run` is an earlier start of the writer, and the request is refused.
        """
        draft = Draft(now_ms)
        state = self._joints.get(name)
        answer = JointAnswer(last_version=state.last_version)
        try:
            _check_names(name, version, run)
            if version <= state.last_version:
                answer = replace(_committed(state, version), last_version=state.last_version)
            elif run and (version, run) != (state.open_version, state.run):
                self._take_over(name, state, version, run, order, draft)
        except Refused as refused:
            answer = replace(answer, error=refused.code, message=str(refused))
        return draft.decision(answer)

    def _take_over(
        self, name: JointName, state: JointState, version: int, run: str, order: int, draft: Draft
    ) -> None:
        superseded: tuple[str, ...] = ()
        if state.open_version == version:
            if run in state.superseded or NO_ORDER < order < state.order:
                raise _superseded(name, version, run, state)
            superseded = _added(state.superseded, state.run)
            order = max(order, state.order)
        value = replace(
            state, open_version=version, run=run, superseded=superseded, order=order, update_ms=draft.now_ms
        )
        self._joints.put(name, value, draft.records)
        for transactional_id in self.superseded_children(name, version, run)[:DISMISSED_AT_ONCE]:
            self._dismiss(transactional_id, draft)

    def superseded_children(self, name: JointName, version: int, run: str) -> list[str]:
        """Return the children of a version that belong to other runs than `run`, and whose end is not decided."""
        return [
            transactional_id
            for transactional_id, child in self._joints.children(name)
            if child.version == version
            and child.run not in ("", run)
            and not self._table.known(transactional_id).state.is_decided
        ]

    def dismiss(self, transactional_ids: Iterable[str], *, now_ms: int) -> Decision[None]:
        """Abort those of these children that are open. Forget the others."""
        draft = Draft(now_ms)
        for transactional_id in transactional_ids:
            if self._table.get(transactional_id) is not None:
                self._dismiss(transactional_id, draft)
        return draft.decision(None)

    def check_commit(self, name: JointName, version: int, run: str | None = None) -> JointAnswer | None:
        """Return the answer to a request for a joint commit if it does not depend on the children, for example because
        this version is committed already; None if it depends on them.
        """
        state = self._joints.get(name)
        try:
            _check_names(name, version, run)
            if version <= state.last_version:
                return _committed(state, version)
            if run and state.open_version == version and run != state.run:
                raise _superseded(name, version, run, state)
            self._table.check_sequences()
        except Refused as refused:
            return JointAnswer(refused.code, str(refused))
        return None

    def commit(
        self,
        name: JointName,
        version: int,
        children: Sequence[ChildShown],
        *,
        run: str | None = None,
        retention_ms: int = FOR_EVER,
        digest: str | None = None,
        now_ms: int,
    ) -> Decision[JointAnswer]:
        """Commit the children of a joint commit, with one commit sequence. If one cannot be committed, decide nothing.

        Args:
            name: group and key of the joint commit.
            version: its version. At or below the last committed version, the answer is `committed`.
            children: the children; there may be none.
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
            chosen = [(shown.transactional_id, self._chosen(name, version, shown)) for shown in children]
            if len(dict(chosen)) < len(chosen):
                raise Refused(ErrorCode.invalid_request, "the request names a child more than once")
            if len((digest or "").encode()) > DIGEST_SIZE_MAX:
                raise Refused(ErrorCode.invalid_request, f"a digest has at most {DIGEST_SIZE_MAX} bytes")
        except Refused as refused:
            return Decision(JointAnswer(refused.code, str(refused)))
        draft = Draft(now_ms)
        g = self._table.take_sequence()
        value = JointState(
            version,
            g,
            retention_ms=max(retention_ms, FOR_EVER),
            update_ms=now_ms,
            committed_run=run or "",
            digest=digest or "",
        )
        self._joints.put(name, value, draft.records)
        for transactional_id, txn in chosen:
            if txn.state is State.ONGOING:
                self._ending.end(
                    transactional_id, txn, Event.COMMIT, draft, owner_may_ask=False, commit_sequence=g
                )
        # The other children of this version and of earlier versions can never be committed: abort them.
        for transactional_id, child in self._joints.children(name):
            if child.version <= version:
                self._dismiss(transactional_id, draft)
        return draft.decision(replace(_committed(value, version), committed=False))

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

        With `run`, abort also all other children of that run, and refuse the children that the run begins later.
        """
        known = self.check_abort(name, version, children, run)
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
        for transactional_id, _ in self._of_run(name, version, run):
            self._dismiss(transactional_id, draft)
        return draft.decision(JointAnswer())

    def check_abort(
        self, name: JointName, version: int, children: Sequence[ChildShown], run: str | None = None
    ) -> JointAnswer | None:
        """Return the answer to an abort that is refused or comes after the commit; None if the abort can be carried
        out.
        """
        state = self._joints.get(name)
        try:
            _check_names(name, version, run)
            for shown in children:
                _check_belongs(name, version, shown)
        except Refused as refused:
            return JointAnswer(refused.code, str(refused))
        return _committed(state, version) if version <= state.last_version else None

    def has_open(
        self, children: Sequence[ChildShown], name: JointName, version: int, run: str | None = None
    ) -> bool:
        """Whether one of `children` is an open transaction; with `run`, also whether any child of that run is one."""
        shown = {transactional_id: tuple(identity) for transactional_id, *identity in children}
        known = [
            (self._table.get(transactional_id), identity) for transactional_id, identity in shown.items()
        ]
        candidates = [txn for txn, identity in known if txn is not None and txn.client == identity]
        candidates += [txn for _, txn in self._of_run(name, version, run)]
        return any(txn.state is State.ONGOING for txn in candidates)

    def _of_run(self, name: JointName, version: int, run: str | None) -> list[tuple[str, Transaction]]:
        """Return the known children of a run (a start of the writer), with their states; none if `run` is empty."""
        return [
            (transactional_id, self._table.known(transactional_id))
            for transactional_id, child in self._joints.children(name)
            if run and (child.version, child.run) == (version, run)
        ]

    # -- children --------------------------------------------------------------------------------------------

    def check_open(self, transactional_id: str) -> None:
        """Refuse to open a child of a joint commit that comes too late to be committed.

        Raises:
            Refused: the child's version of the joint commit, or a later one, is committed; or another start of the
                writer has begun this version since.
        """
        child = child_of(transactional_id)
        if child is None:
            return
        state = self._joints.get(child.name)
        if child.version <= state.last_version:
            raise Refused(
                ErrorCode.producer_fenced,
                f"{transactional_id} comes too late: version {state.last_version} of joint commit "
                f"{child.name.key!r} was committed as commit {state.commit_sequence}",
            )
        is_current = child.run == state.run if state.run else child.run not in state.superseded
        if child.version == state.open_version and child.run and not is_current:
            raise _superseded(child.name, child.version, child.run, state)

    def check_end(self, transactional_id: str, *, commit: bool) -> bool:
        """Return whether the id is that of a child of a joint commit.

        A child's producer epoch ends with its transaction, even with TV1.

        A commit request names each child with its epoch. So if a child was aborted and its producer has begun another
        transaction, the commit cannot include that other transaction by mistake.

        Raises:
            Refused: the request would commit a child alone.
        """
        child = child_of(transactional_id)
        if child is not None and commit:
            raise Refused(
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

    def _chosen(self, name: JointName, version: int, shown: ChildShown) -> Transaction:
        """Return the state of a child, after a check that its joint commit can commit it.

        Raises:
            Refused: the child cannot be committed; the message names the reason.
        """
        transactional_id, *identity = shown
        _check_belongs(name, version, shown)
        self.check_open(transactional_id)
        txn = self._table.get(transactional_id)
        if txn is None:
            raise Refused(
                ErrorCode.invalid_producer_id_mapping,
                f"child {transactional_id} is unknown: it was not begun, or was forgotten",
            )
        if txn.client != Identity(*identity):
            what = "was aborted" if txn.state in _ABORTED else "was fenced"
            raise Refused(
                ErrorCode.producer_fenced,
                f"child {transactional_id} of producer {shown.producer_id} with epoch {shown.producer_epoch} {what}; "
                f"producer {txn.client.producer_id} with epoch {txn.client.producer_epoch} holds the id",
            )
        if txn.state not in (State.EMPTY, State.ONGOING):
            raise Refused(
                ErrorCode.invalid_txn_state,
                f"child {transactional_id} has no open transaction: it is in state {txn.state.label}",
            )
        if self._table.is_turned_away(transactional_id, txn):
            raise turned_away(transactional_id)
        return txn

    def _dismiss(self, transactional_id: str, draft: Draft) -> None:
        """Abort a child of a joint commit if it is open. Otherwise forget it, now or when its markers are written."""
        txn = self._table.known(transactional_id)
        if txn.state is State.ONGOING:
            self._ending.fence(transactional_id, txn, draft, owner_may_ask=False)
        elif not txn.state.is_decided:
            self._table.forget(transactional_id, draft.records)


_ABORTED: Final = (State.PREPARE_ABORT, State.COMPLETE_ABORT)


def _committed(state: JointState, version: int) -> JointAnswer:
    """Return the answer for a committed version. Commit sequence, run and digest are known only of the last committed
    one.
    """
    known = state if version == state.last_version else UNKNOWN
    return JointAnswer(
        committed=True,
        commit_sequence=known.commit_sequence,
        run=known.committed_run,
        digest=known.digest,
    )


def _added(superseded: tuple[str, ...], run: str) -> tuple[str, ...]:
    known = (*superseded, run) if run and run not in superseded else superseded
    return known[-SUPERSEDED_MAX:]


def _superseded(name: JointName, version: int, run: str, state: JointState) -> Refused:
    by = f"run {state.run!r} has begun it since" if state.run else "it was given up"
    return Refused(
        ErrorCode.producer_fenced,
        f"run {run!r} no longer has version {version} of joint commit {name.key!r}: {by}",
    )


def _check_names(name: JointName, version: int, run: str | None) -> None:
    if not 0 < len(name.key.encode()) <= KEY_SIZE_MAX:
        raise Refused(ErrorCode.invalid_request, f"the key of a joint commit has 1 to {KEY_SIZE_MAX} bytes")
    if not 0 <= version <= VERSION_MAX:
        raise Refused(ErrorCode.invalid_request, f"version {version} is not valid: versions begin at 0")
    if not is_group_name(name.group):
        raise Refused(ErrorCode.invalid_request, f"{name.group!r} is not the name of a transaction group")
    if run is not None and len(run.encode()) > RUN_SIZE_MAX:
        raise Refused(ErrorCode.invalid_request, f"the name of a run has at most {RUN_SIZE_MAX} bytes")


def _check_belongs(name: JointName, version: int, shown: ChildShown) -> None:
    child = child_of(shown.transactional_id)
    if child is None or child.name != name or child.version != version:
        raise Refused(
            ErrorCode.invalid_request,
            f"{shown.transactional_id} is not a child of version {version} of joint commit {name.key!r} in "
            f"transaction group {name.group or 'default'!r}",
        )
