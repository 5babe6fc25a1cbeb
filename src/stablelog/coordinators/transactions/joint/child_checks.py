"""Checks whether a joint commit can commit its children, which are transactions of several producers.

Many children are checked in turns of the event loop. Between two turns, other requests may change a child or the state
of the joint commit's key. `ChildChecks.are_current` returns whether the results of the checks are still valid.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.answers import ChildShown
from stablelog.coordinators.transactions.joint.name_checks import check_belongs
from stablelog.coordinators.transactions.joint.records import JointState
from stablelog.coordinators.transactions.refusals import abort_only_refusal
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import Child, JointName, child_of

_ABORTED: Final = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)


@dataclass(slots=True)
class CheckedChildren:
    """The results of `ChildChecks.check_children` for one joint commit, which commits several transactions (its
    children) together.

    Attributes:
        state: the state of the joint commit's key when the checks began.
        snapshots: by transactional id, the state of the child at the time of its check, to recognise a later change.
        opened: the transactional ids of the children with an open transaction.
        identities: the producer id and epoch of each child in `opened`.
    """

    state: JointState
    snapshots: dict[str, TransactionMetadata | bytes] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    identities: list[tuple[int, int]] = field(default_factory=list)


class ChildChecks:
    """Checks whether the children of a joint commit (the transactions that it commits together) can be committed, for
    all joint commits of one transaction group (topics whose commits have one order).

    Args:
        table: the state of the transaction group.
    """

    def __init__(self, table: TransactionTable) -> None:
        self._table = table
        self._joints = table.joints

    def check_open(self, transactional_id: str) -> None:
        """Check that a transactional id, if it is that of a child (one of the transactions that a joint commit commits
        together), may still begin or write a transaction. Other transactional ids always pass.

        Raises:
            RefusedError: the child's version of the joint commit, or a later version, is committed; or another start of
                the writer has begun this version since.
        """
        child = child_of(transactional_id)
        if child is None:
            return
        state = self._joints.get(child.name)
        if child.version <= state.last_version:
            raise RefusedError(
                ErrorCode.producer_fenced,
                f"the transaction of {transactional_id} can no longer be committed: version "
                f"{state.last_version} of its joint commit {child.name.key!r} was committed already, as "
                f"commit {state.commit_sequence}",
            )
        if _lost_version(child, state):
            raise superseded(child.name, child.version, child.run, state)

    def is_late(self, child: Child) -> bool:
        """Return whether a child, one of the transactions that a joint commit commits together, can no longer be
        committed.

        There are two reasons: its version of the joint commit, or a later version, is committed; or another start of
        the writer has begun this version since. Do not call this method for a child that a recorded joint commit has
        committed: the result would be meaningless.
        """
        state = self._joints.get(child.name)
        return child.version <= state.last_version or _lost_version(child, state)

    def check_child(self, name: JointName, version: int, shown: ChildShown) -> TransactionMetadata:
        """Check that a version of a joint commit can commit a child (one of the transactions that it commits together),
        which the request names as `shown`, and return the child's state.

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
                f"transactional id {transactional_id} of the joint commit is unknown: no transaction was "
                "begun with this id, or the broker has forgotten the id",
            )
        if txn.client != ProducerIdAndEpoch(*identity):
            was_ended = "was aborted" if txn.state in _ABORTED else "was fenced"
            raise RefusedError(
                ErrorCode.producer_fenced,
                f"the transaction of {transactional_id} by producer {shown.producer_id} with epoch "
                f"{shown.producer_epoch} {was_ended}: producer {txn.client.producer_id} with epoch "
                f"{txn.client.producer_epoch} has this transactional id now",
            )
        if txn.state not in (TransactionState.EMPTY, TransactionState.ONGOING):
            raise RefusedError(
                ErrorCode.invalid_txn_state,
                f"transactional id {transactional_id} has no open transaction: its last transaction is in "
                f"state {txn.state.label}",
            )
        if self._table.is_abort_only(transactional_id, txn):
            raise abort_only_refusal(transactional_id)
        return txn

    def begin_checks(self, name: JointName) -> CheckedChildren:
        """Return an empty object to which `check_children` adds its results, for a joint commit (of several
        transactions, its children, together) with the key in `name`.
        """
        return CheckedChildren(self._joints.get(name))

    def check_children(
        self, name: JointName, version: int, children: Iterable[ChildShown], checked: CheckedChildren
    ) -> None:
        """Check whether children of a joint commit (the transactions that it commits together) can be committed, and
        add the results to `checked`.

        Raises:
            RefusedError: a child cannot be committed, or is named twice.
        """
        for shown in children:
            transactional_id = shown.transactional_id
            if transactional_id in checked.snapshots:
                raise _named_twice()
            txn = self.check_child(name, version, shown)
            snapshot = self._table.state_snapshot(transactional_id)
            assert snapshot is not None
            checked.snapshots[transactional_id] = snapshot
            if txn.state is TransactionState.ONGOING:
                checked.opened.append(transactional_id)
                checked.identities.append((shown.producer_id, shown.producer_epoch))

    def are_current(self, name: JointName, checked: CheckedChildren) -> bool:
        """Return whether the results of `check_children` are still valid: since the checks, neither the state of the
        joint commit's key nor that of a child (one of the transactions that the commit commits together) has changed.
        """
        return self._joints.get(name) is checked.state and not self._table.changed_ids(checked.snapshots)


def _lost_version(child: Child, state: JointState) -> bool:
    """Return whether the run of a child has lost its version of the joint commit: another run has begun the same
    version since. A run is a start of the writer; a child is one of the transactions that it commits together.
    """
    is_current = child.run == state.run if state.run else child.run not in state.superseded
    return child.version == state.open_version and bool(child.run) and not is_current


def superseded(name: JointName, version: int, run: str, state: JointState) -> RefusedError:
    """Return the error for a request of a superseded run (a start of the writer): another run has begun the same
    version of the joint commit (of several transactions together) since.
    """
    by = f"run {state.run!r} has begun it since" if state.run else "it was given up"
    return RefusedError(
        ErrorCode.producer_fenced,
        f"run {run!r} no longer has version {version} of joint commit {name.key!r}: {by}",
    )


def _named_twice() -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, "the request names a child more than once")
