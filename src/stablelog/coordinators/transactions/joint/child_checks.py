"""Children of joint commits: which of them can still be committed, and the checks of those that a commit names.

Many children are checked in turns of the event loop. In between, other requests may change the key of the joint commit
or a child. `ChildChecks.are_current` says whether the results of the checks still hold.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.answers import ChildShown
from stablelog.coordinators.transactions.joint.checks import check_belongs
from stablelog.coordinators.transactions.joint.records import JointState
from stablelog.coordinators.transactions.refusals import turned_away
from stablelog.coordinators.transactions.states import State
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import Identity, Transaction
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import Child, JointName, child_of

_ABORTED: Final = (State.PREPARE_ABORT, State.COMPLETE_ABORT)


@dataclass(slots=True)
class Checked:
    """The results of checks of the children of a commit (`ChildChecks.check_all`).

    Attributes:
        state: the state of the key when the checks began.
        snapshots: by transactional id, a value by which a later change of the child is recognised.
        opened: the children with an open transaction.
        identities: the producer id and epoch of each child in `opened`.
    """

    state: JointState
    snapshots: dict[str, Transaction | bytes] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    identities: list[tuple[int, int]] = field(default_factory=list)


class ChildChecks:
    """Checks the children of the joint commits of one transaction group.

    Args:
        table: the state of the transaction group.
    """

    def __init__(self, table: TransactionTable) -> None:
        self._table = table
        self._joints = table.joints

    def check_open(self, transactional_id: str) -> None:
        """Refuse to open a child of a joint commit that comes too late to be committed.

        Raises:
            RefusedError: the child's version of the joint commit, or a later one, is committed; or another start of the
                writer has begun this version since.
        """
        child = child_of(transactional_id)
        if child is None:
            return
        state = self._joints.get(child.name)
        if child.version <= state.last_version:
            raise RefusedError(
                ErrorCode.producer_fenced,
                f"{transactional_id} comes too late: version {state.last_version} of joint commit "
                f"{child.name.key!r} was committed as commit {state.commit_sequence}",
            )
        if _lost_version(child, state):
            raise superseded(child.name, child.version, child.run, state)

    def is_late(self, child: Child) -> bool:
        """Whether a child can never be committed any more, unless it is accepted or decided: its version of the joint
        commit, or a later one, is committed, or another start of the writer has begun this version since.
        """
        state = self._joints.get(child.name)
        return child.version <= state.last_version or _lost_version(child, state)

    def check_one(self, name: JointName, version: int, shown: ChildShown) -> Transaction:
        """Return the state of a child, after a check that its joint commit can commit it.

        Raises:
            RefusedError: the child cannot be committed; the message names the reason.
        """
        transactional_id, *identity = shown
        check_belongs(name, version, shown)
        self.check_open(transactional_id)
        txn = self._table.get(transactional_id)
        if txn is None:
            raise RefusedError(
                ErrorCode.invalid_producer_id_mapping,
                f"child {transactional_id} is unknown: it was not begun, or was forgotten",
            )
        if txn.client != Identity(*identity):
            what = "was aborted" if txn.state in _ABORTED else "was fenced"
            raise RefusedError(
                ErrorCode.producer_fenced,
                f"child {transactional_id} of producer {shown.producer_id} with epoch {shown.producer_epoch} {what}; "
                f"producer {txn.client.producer_id} with epoch {txn.client.producer_epoch} holds the id",
            )
        if txn.state not in (State.EMPTY, State.ONGOING):
            raise RefusedError(
                ErrorCode.invalid_txn_state,
                f"child {transactional_id} has no open transaction: it is in state {txn.state.label}",
            )
        if self._table.is_turned_away(transactional_id, txn):
            raise turned_away(transactional_id)
        return txn

    def begin(self, name: JointName) -> Checked:
        """Return an object for the results of `check_all`, for a commit of many children."""
        return Checked(self._joints.get(name))

    def check_all(
        self, name: JointName, version: int, children: Iterable[ChildShown], checked: Checked
    ) -> None:
        """Check children of a commit, and note the results in `checked`.

        Raises:
            RefusedError: a child cannot be committed, or is named twice.
        """
        for shown in children:
            transactional_id = shown.transactional_id
            if transactional_id in checked.snapshots:
                raise _named_twice()
            txn = self.check_one(name, version, shown)
            snapshot = self._table.snapshot(transactional_id)
            assert snapshot is not None
            checked.snapshots[transactional_id] = snapshot
            if txn.state is State.ONGOING:
                checked.opened.append(transactional_id)
                checked.identities.append((shown.producer_id, shown.producer_epoch))

    def are_current(self, name: JointName, checked: Checked) -> bool:
        """Whether the results of `check_all` still hold: neither the key nor a child has changed since."""
        return self._joints.get(name) is checked.state and not self._table.changed(checked.snapshots)


def _lost_version(child: Child, state: JointState) -> bool:
    """Whether another start of the writer has begun the child's version since the child's own start."""
    is_current = child.run == state.run if state.run else child.run not in state.superseded
    return child.version == state.open_version and bool(child.run) and not is_current


def superseded(name: JointName, version: int, run: str, state: JointState) -> RefusedError:
    """Return the error for a run (a start of the writer) that no longer has a version of a joint commit."""
    by = f"run {state.run!r} has begun it since" if state.run else "it was given up"
    return RefusedError(
        ErrorCode.producer_fenced,
        f"run {run!r} no longer has version {version} of joint commit {name.key!r}: {by}",
    )


def _named_twice() -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, "the request names a child more than once")
