"""Joint commits of many children (a child is one of the transactions that a joint commit commits together), which are
decided in several decisions.

To end a child takes about 20 microseconds, and a joint commit may have thousands of children. The first decision of a
long joint commit is only the record of its key. This record is the commit: it contains the commit sequence, and it
names the children. These children are *accepted*. A crash keeps this record as a whole or loses it as a whole. The
decisions that end the accepted children follow. The last of these decisions writes the record of the key again, without
children.

While a transaction group has accepted children whose end is not decided, these rules hold:

- No other transaction of the group is committed. Otherwise the markers of a partition would not stand in the order of
  their commit sequences.
- The commit does not count as resolved (all markers written), so that no cut contains it in part.
- No other decision ends an accepted child. Requests of its producer are refused, because its version of the joint
  commit is committed, and an operator's request to abort the child is refused, too. The coordinator aborts no
  transaction for a timeout meanwhile.

If the broker stops before all accepted children have ended, the next start ends the others (`finish_replay`).

Source: docs/decisions/0006-joint-commit.md, "A long joint commit is several batches".
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from stablelog.coordinators.transactions.answers import Draft
from stablelog.coordinators.transactions.ending import TransactionEnder
from stablelog.coordinators.transactions.joint.records import JointState
from stablelog.coordinators.transactions.states import TransactionEvent, TransactionState
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.wire.extension.children import JointName, child_of

# The number of children of a joint commit, or of other transactions, that one decision ends.
ENDED_AT_ONCE: Final = 50


class AcceptedChildren:
    """The accepted children of a long joint commit, a commit of many transactions (its children) together.

    The commit is recorded already. Further decisions end the children, a few in each.

    At most one joint commit of a transaction group (topics whose commits have one order) has accepted children at a
    time.

    Args:
        table: the state of the transaction group.
        ending: makes the decisions that end transactions.
    """

    def __init__(self, table: TransactionTable, ending: TransactionEnder) -> None:
        self._table = table
        self._ending = ending
        self._name: JointName | None = None
        self._left: deque[str] = deque()
        self._accepted: frozenset[str] = frozenset()

    @property
    def is_pending(self) -> bool:
        """Whether there are accepted children: transactions that a recorded joint commit commits together, and whose
        own ends are not decided yet.
        """
        return self._name is not None

    def contains(self, transactional_id: str) -> bool:
        """Return whether the id is that of an accepted child: one of the transactions that a recorded joint commit
        commits together, whose own end is not decided yet.
        """
        return transactional_id in self._accepted

    def accept_children(self, name: JointName, transactional_ids: Iterable[str]) -> None:
        """Accept the children of a joint commit, the transactions that it commits together: from now on they are
        committed, and only the decision that ends each of them is missing.

        The caller has just added the record of the key of the joint commit to the commit log. The number of this joint
        commit (its commit sequence) is the last one that the group has assigned.
        """
        assert not self.is_pending
        self._name = name
        self._left.extend(transactional_ids)
        self._accepted = frozenset(self._left)
        assert self._left
        assert len(self._left) == len(self._accepted)
        self._table.sequences.hold_last()

    def end_next_children(self, draft: Draft, count_max: int = ENDED_AT_ONCE) -> None:
        """Decide the commit of the next accepted children (transactions that a recorded joint commit commits together),
        at most `count_max`. The decision about the last child also ends the joint commit, so that other transactions
        can be committed again.
        """
        assert self._name is not None
        state = self._table.joints.get(self._name)
        for _ in range(min(count_max, len(self._left))):
            transactional_id = self._left.popleft()
            end_child(
                self._ending, transactional_id, self._table.require_state(transactional_id), state, draft
            )
        if not self._left:
            self._table.joints.put(self._name, replace(state, accepted=()), draft.records)
            self._table.sequences.release_held()
            self._name = None
            self._accepted = frozenset()

    def finish_replay(self, draft: Draft) -> None:
        """Finish the replay of the commit log at a start of the broker: decide the commit of accepted children
        (transactions that a recorded joint commit commits together) that were not ended before the broker stopped.

        Another crash may lose these decisions: the next start makes them again, because the record that accepts the
        children is durable.
        """
        joints = self._table.joints
        for name, state in joints.unfinished_commits():
            for identity in state.accepted:
                transactional_id = self._table.owner_of(identity[0])
                if transactional_id is None:
                    continue
                txn = self._table.require_state(transactional_id)
                # If the end of the child was decided, the child has another epoch now, or another child has its producer
                # id. A child without an open transaction has nothing to commit.
                if txn.client != identity or txn.state is not TransactionState.ONGOING:
                    continue
                child = child_of(transactional_id)
                assert child is not None
                assert (child.name, child.version) == (name, state.last_version)
                end_child(self._ending, transactional_id, txn, state, draft)
            joints.put(name, replace(state, accepted=()), draft.records)


def end_child(
    ending: TransactionEnder, transactional_id: str, txn: TransactionMetadata, state: JointState, draft: Draft
) -> None:
    """Decide the commit of an open child, one of the transactions that a joint commit commits together. This also ends
    the child.

    Args:
        ending: ends transactions.
        transactional_id: the id of the child.
        txn: the state of the child.
        state: the state of the joint commit's key. Its commit sequence (number of the commit) becomes that of the
            child.
        draft: the decision that is being made. The record of the end is added to it, and the marker order, which is the
            instruction to write the end markers.
    """
    ending.end(
        transactional_id,
        txn,
        TransactionEvent.COMMIT,
        draft,
        owner_may_ask=False,
        commit_sequence=state.commit_sequence,
    )
