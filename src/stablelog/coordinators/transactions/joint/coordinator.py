"""How do several open transactions become one? The joint commit.

Its *children* are transactions whose ids name a key, a version and a run (`wire.extension.children`). They are written
as any transaction, by any client, but never committed alone. The commit of a (key, version) is one decision: the
key's record and those of all its children go into the commit log as one batch, with one commit sequence. What follows
is as for any commit; every child's markers carry that sequence.

The key's record remembers the last version that was committed. From it come:

- a repeated commit is answered as the first one was, after any restart, and decides nothing;
- of two that commit the same version the first wins; a version below the last is as good as committed;
- children that the commit does not name, of this version or an earlier one, are aborted with it; children that come
  later, or write later, are refused;
- whoever asks learns who has committed it, and of what: a writer that has planned the version anew can tell.

A child is committed under an epoch that its producer does not have, so it can do nothing more. Once its markers are
written it is forgotten: the key remembers for it.

Source: docs/decisions/0006-joint-commit.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypedDict

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.decisions import Decision, MarkerOrder
from stablelog.coordinators.transactions.ending import SECOND_DIALECT, Ending
from stablelog.coordinators.transactions.joint.records import FOR_EVER, NO_ORDER, NO_VERSION, JointState
from stablelog.coordinators.transactions.joint.table import UNKNOWN, JointTable
from stablelog.coordinators.transactions.records import NO_SEQUENCE, Identity, Record, Transaction
from stablelog.coordinators.transactions.refusals import turned_away
from stablelog.coordinators.transactions.states import Event, State
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.errors import Refused
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import VERSION_MAX, JointName, child_id, child_of
from stablelog.wire.extension.transaction_groups import is_group_name

KEY_SIZE_MAX: Final = 255  # bytes, so that ids made of it stay below the size of a transactional id
RUN_SIZE_MAX: Final = 100
DIGEST_SIZE_MAX: Final = 100
SUPERSEDED_MAX: Final = 100  # an older one could begin again; it would be superseded again
OFFSETS_TIMEOUT_MS: Final = 60_000
OFFSETS_PART: Final = "offsets"


class ChildShown(NamedTuple):
    """A child, as whoever commits it shows it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class BeginAnswer:
    """To BeginJoint; see `BeginJointResponse`."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    committed: bool = False
    commit_sequence: int = NO_SEQUENCE
    last_version: int = NO_VERSION
    run: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """To CommitJoint; see `CommitJointResponse`."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    commit_sequence: int = NO_SEQUENCE
    already: bool = False
    run: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class AbortAnswer:
    """To AbortJoint; see `AbortJointResponse`."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    committed: bool = False
    commit_sequence: int = NO_SEQUENCE


class JointCommits:
    """The joint commits of one commit log.

    Args:
        table: the transactional ids.
        ending: ends transactions.
        attempt_prefix: makes names of children of our own different from those of any other start.
    """

    def __init__(self, table: TransactionTable, ending: Ending, attempt_prefix: int) -> None:
        self._table = table
        self._joints: JointTable = table.joints
        self._ending = ending
        self._attempt_prefix = attempt_prefix
        self._attempt_count = 0

    # -- what clients ask ------------------------------------------------------------------------------------

    def begin(
        self,
        name: JointName,
        version: int,
        run: str | None = None,
        *,
        order: int = NO_ORDER,
        now_ms: int,
    ) -> Decision[BeginAnswer]:
        """Whether a version is still open; if it is, `run` has it from now on.

        Open children of other runs of this version are aborted, and new ones refused. A run of a lesser order than one
        that had the version is refused: it is what is left of an earlier start.
        """
        records: list[Record] = []
        markers: list[MarkerOrder] = []
        state = self._joints.get(name)
        try:
            _check_names(name, version, run)
            if version <= state.last_version:
                of_last = _of_last(state, version)
                return Decision(BeginAnswer(committed=True, last_version=state.last_version, **of_last))
            if run and (version, run) != (state.open_version, state.run):
                self._take_over(name, state, version, run, order, records, markers, now_ms=now_ms)
        except Refused as refused:
            return Decision(BeginAnswer(refused.code, str(refused), last_version=state.last_version))
        return Decision(BeginAnswer(last_version=state.last_version), records, markers)

    def _take_over(
        self,
        name: JointName,
        state: JointState,
        version: int,
        run: str,
        order: int,
        records: list[Record],
        markers: list[MarkerOrder],
        *,
        now_ms: int,
    ) -> None:
        superseded: tuple[str, ...] = ()
        if state.open_version == version:
            if run in state.superseded or NO_ORDER < order < state.order:
                raise _superseded(name, version, run, state)
            superseded = _added(state.superseded, state.run)
            order = max(order, state.order)
        value = replace(
            state, open_version=version, run=run, superseded=superseded, order=order, update_ms=now_ms
        )
        self._joints.put(name, value, records)
        for transactional_id, child in self._joints.children(name):
            if child.version == version and child.run not in ("", run):
                self._dismiss(transactional_id, records, markers, now_ms=now_ms)

    def check_commit(self, name: JointName, version: int, run: str | None = None) -> CommitAnswer | None:
        """What a commit would be answered whatever its children are; None if it depends on them."""
        state = self._joints.get(name)
        try:
            _check_names(name, version, run)
            if version <= state.last_version:
                return CommitAnswer(already=True, **_of_last(state, version))
            if run and state.open_version == version and run != state.run:
                raise _superseded(name, version, run, state)
            self._table.check_sequences()
        except Refused as refused:
            return CommitAnswer(refused.code, str(refused))
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
    ) -> Decision[CommitAnswer]:
        """Commit the children, all with one number; or nothing is decided, and the answer names the child.

        Args:
            name: of the joint commit.
            version: of it. At or below the last one that was committed, the answer is that it is committed already.
            children: may be none.
            run: who commits; refused if another run has begun the version since.
            retention_ms: how long the key is remembered after its last commit.
            digest: what the version is made of, for whoever asks later; not looked into.
            now_ms: broker time.
        """
        known = self.check_commit(name, version, run)
        if known is not None:
            return Decision(known)
        try:
            chosen = [(shown.transactional_id, self._chosen(name, version, shown)) for shown in children]
            if len(dict(chosen)) < len(chosen):
                raise Refused(ErrorCode.invalid_request, "a child is named more than once")
            if len((digest or "").encode()) > DIGEST_SIZE_MAX:
                raise Refused(ErrorCode.invalid_request, f"a digest has at most {DIGEST_SIZE_MAX} bytes")
        except Refused as refused:
            return Decision(CommitAnswer(refused.code, str(refused)))
        records: list[Record] = []
        markers: list[MarkerOrder] = []
        g = self._table.take_sequence()
        value = JointState(
            version,
            g,
            retention_ms=max(retention_ms, FOR_EVER),
            update_ms=now_ms,
            committed_run=run or "",
            digest=digest or "",
        )
        self._joints.put(name, value, records)
        for transactional_id, txn in chosen:
            if txn.state is State.ONGOING:
                markers += self._ending.end(
                    transactional_id,
                    txn,
                    Event.COMMIT,
                    records,
                    owner_may_ask=False,
                    commit_sequence=g,
                    now_ms=now_ms,
                )
        # What is left of this version and of earlier ones can never be committed.
        for transactional_id, child in self._joints.children(name):
            if child.version <= version:
                self._dismiss(transactional_id, records, markers, now_ms=now_ms)
        return Decision(CommitAnswer(**_of_last(value, version)), records, markers)

    def abort(
        self,
        name: JointName,
        version: int,
        children: Sequence[ChildShown],
        *,
        run: str | None = None,
        now_ms: int,
    ) -> Decision[AbortAnswer]:
        """Abort the children, unless the version is committed; with `run` all of its children, and new ones."""
        records: list[Record] = []
        markers: list[MarkerOrder] = []
        state = self._joints.get(name)
        known = self.check_abort(name, version, children, run)
        if known is not None:
            return Decision(known)
        if run and (state.open_version == NO_VERSION or (state.open_version, state.run) == (version, run)):
            given_up = _added(state.superseded, run)
            value = replace(state, open_version=version, run="", superseded=given_up, update_ms=now_ms)
            self._joints.put(name, value, records)
        for transactional_id, producer_id, producer_epoch in children:
            txn = self._table.get(transactional_id)
            if txn is not None and txn.client == (producer_id, producer_epoch):
                self._dismiss(transactional_id, records, markers, now_ms=now_ms)
        for transactional_id, child in self._joints.children(name):
            if run and (child.version, child.run) == (version, run):
                self._dismiss(transactional_id, records, markers, now_ms=now_ms)
        return Decision(AbortAnswer(), records, markers)

    def check_abort(
        self, name: JointName, version: int, children: Sequence[ChildShown], run: str | None = None
    ) -> AbortAnswer | None:
        """What an abort would be answered whether its children are open or not; None if it aborts what is."""
        state = self._joints.get(name)
        try:
            _check_names(name, version, run)
            for shown in children:
                self._check_belongs(name, version, shown)
        except Refused as refused:
            return AbortAnswer(refused.code, str(refused))
        if version <= state.last_version:
            g = _of_last(state, version)["commit_sequence"]
            return AbortAnswer(committed=True, commit_sequence=g)
        return None

    def has_open(
        self, children: Sequence[ChildShown], name: JointName, version: int, run: str | None = None
    ) -> bool:
        """Whether one of the children is an open transaction; or, with `run`, one of that run's children."""
        shown = {child.transactional_id: child[1:] for child in children}
        known = (self._table.get(transactional_id) for transactional_id in shown)
        if any(
            txn is not None and txn.state is State.ONGOING and txn.client == identity
            for txn, identity in zip(known, shown.values(), strict=True)
        ):
            return True
        of_run = (
            self._table.get(transactional_id)
            for transactional_id, child in self._joints.children(name)
            if run and (child.version, child.run) == (version, run)
        )
        return any(txn is not None and txn.state is State.ONGOING for txn in of_run)

    # -- children --------------------------------------------------------------------------------------------

    def check_open(self, transactional_id: str) -> None:
        """Refuse a child that has come too late.

        Raises:
            Refused: its version, or a later one, is committed; or another run has begun the version since.
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
        """Whether the id is a child's: then its identity ends with its transaction, also in the first dialect.

        So a child that was aborted, and whose producer has begun another transaction, is not taken for the one that was
        shown to whoever commits.

        Raises:
            Refused: it is a child that wants to commit alone.
        """
        child = child_of(transactional_id)
        if child is not None and commit:
            raise Refused(
                ErrorCode.invalid_txn_state,
                f"{transactional_id} is a part of version {child.version} of joint commit {child.name.key!r}: "
                "CommitJoint commits it, together with the others",
            )
        return child is not None

    def open_offsets(
        self, name: JointName, version: int, partition: TopicPartition, *, now_ms: int
    ) -> Decision[ChildShown]:
        """A child of our own, for the offsets of consumer groups that are to be committed with the others.

        It is open at once, in the offsets log's `partition`, which may be written to when the record is durable: before
        that a crash could give its producer id to another. It belongs to no run. If it is not committed, it is
        aborted in time.
        """
        records: list[Record] = []
        self._attempt_count += 1
        attempt = f"{self._attempt_prefix}.{self._attempt_count}"
        transactional_id = child_id(name.key, version, "", OFFSETS_PART, attempt, group=name.group)
        txn = Transaction(
            *self._ending.first_identity(transactional_id, records),
            OFFSETS_TIMEOUT_MS,
            State.ONGOING,
            frozenset({partition}),
            update_ms=now_ms,
            start_ms=now_ms,
            transaction_version=SECOND_DIALECT,
        )
        self._table.put(transactional_id, txn, records)
        return Decision(ChildShown(transactional_id, *txn.client), records)

    def _check_belongs(self, name: JointName, version: int, shown: ChildShown) -> None:
        child = child_of(shown.transactional_id)
        if child is None or child.name != name or child.version != version:
            raise Refused(
                ErrorCode.invalid_request,
                f"{shown.transactional_id} is not a child of version {version} of joint commit {name.key!r} in "
                f"transaction group {name.group or 'default'!r}",
            )

    def _chosen(self, name: JointName, version: int, shown: ChildShown) -> Transaction:
        """The state of a child that can be committed.

        Raises:
            Refused: it cannot, and why.
        """
        transactional_id, *identity = shown
        self._check_belongs(name, version, shown)
        self.check_open(transactional_id)
        txn = self._table.get(transactional_id)
        if txn is None:
            raise Refused(ErrorCode.invalid_producer_id_mapping, f"child {transactional_id} is not known")
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

    def _dismiss(
        self,
        transactional_id: str,
        records: list[Record],
        markers: list[MarkerOrder],
        *,
        now_ms: int,
    ) -> None:
        """Abort the child if it is open, forget it if it is not; if its markers are on the way, it is forgotten then."""
        txn = self._table.get(transactional_id)
        assert txn is not None
        if txn.state is State.ONGOING:
            markers += self._ending.fence(transactional_id, txn, records, owner_may_ask=False, now_ms=now_ms)
        elif not txn.state.is_decided:
            self._table.forget(transactional_id, records)


_ABORTED: Final = (State.PREPARE_ABORT, State.COMPLETE_ABORT)


class _OfLast(TypedDict):
    commit_sequence: int
    run: str
    digest: str


def _of_last(state: JointState, version: int) -> _OfLast:
    """What is remembered of the last version that was committed, if it is this one."""
    known = state if version == state.last_version else UNKNOWN
    return _OfLast(commit_sequence=known.commit_sequence, run=known.committed_run, digest=known.digest)


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
        raise Refused(ErrorCode.invalid_request, f"version {version}; versions begin at 0")
    if not is_group_name(name.group):
        raise Refused(ErrorCode.invalid_request, f"{name.group!r} is no transaction group")
    if run is not None and len(run.encode()) > RUN_SIZE_MAX:
        raise Refused(ErrorCode.invalid_request, f"the name of a run has at most {RUN_SIZE_MAX} bytes")
