"""Transactional ids with an open transaction, which can be looked up by id, by producer id and by the time of their
timeout.
"""

from stablelog.coordinators.deadline_queue import DeadlineQueue
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import NO_SEQUENCE, TransactionMetadata


class OpenIds:
    """The transactional ids with an open transaction. They can also be looked up by producer id, by the time of their
    timeout, and in the order of their decisions.

    Attributes:
        txns: the state of each id. Callers only read it.
        decided: the ids whose transaction is decided (committed or aborted) and not all of whose markers are written,
            in the order of the decisions. Callers only read it.
        timeouts: the ids whose transaction times out, by the time of the timeout.
    """

    def __init__(self) -> None:
        self.txns: dict[str, TransactionMetadata] = {}
        self.decided: dict[str, None] = {}
        self.timeouts: DeadlineQueue[str] = DeadlineQueue()
        self._owners: dict[int, str] = {}
        # By commit sequence, in rising order: the ids of the commit, while it lacks markers.
        self._unmarked: dict[int, set[str]] = {}
        # The ids with a transaction that was decided before the broker's start and lacks markers.
        self._repeated: set[str] = set()

    def owner_of(self, producer_id: int) -> str | None:
        """Return the transactional id to which a producer id belongs; None if there is none. Both the producer id of
        the open transaction's records and that of the client, which may differ (KIP-939), belong to the id.
        """
        return self._owners.get(producer_id)

    def first_unmarked(self, default: int) -> int:
        """Return the least commit sequence (number of a commit in its group) among the commits that lack markers;
        `default` if no commit lacks markers.
        """
        return next(iter(self._unmarked), default)

    def is_repeated(self, transactional_id: str) -> bool:
        """Whether the transaction of an id was decided before the broker's last start, and its markers are not all
        written yet.
        """
        return transactional_id in self._repeated

    def mark_repeated(self) -> None:
        """Mark all decided transactions as repeated: decided before the broker's start, so that some partitions may
        have the markers already.
        """
        self._repeated = set(self.decided)

    def put(self, transactional_id: str, txn: TransactionMetadata) -> None:
        """Add a transactional id with the state of its open transaction. The id must not be among the ids with an open
        transaction yet.
        """
        assert transactional_id not in self.txns
        self.txns[transactional_id] = txn
        self._index(transactional_id, txn)

    def remove(self, transactional_id: str) -> bool:
        """Remove a transactional id. Return whether it was among these ids, those with an open transaction."""
        txn = self.txns.pop(transactional_id, None)
        if txn is None:
            return False
        for producer_id in {txn.producer_id, txn.client.producer_id}:
            assert self._owners[producer_id] == transactional_id
            del self._owners[producer_id]
        self.timeouts.cancel(transactional_id)
        self.decided.pop(transactional_id, None)
        self._repeated.discard(transactional_id)
        unmarked = self._unmarked.get(txn.commit_sequence)
        if unmarked is not None:
            unmarked.discard(transactional_id)
            if not unmarked:
                del self._unmarked[txn.commit_sequence]
        return True

    def _index(self, transactional_id: str, txn: TransactionMetadata) -> None:
        self._owners[txn.producer_id] = transactional_id
        self._owners[txn.client.producer_id] = transactional_id
        if txn.state is TransactionState.ONGOING and not txn.is_two_phase:
            self.timeouts.set(transactional_id, txn.start_ms + txn.timeout_ms)
        elif txn.state.is_decided:
            self.decided[transactional_id] = None
            if txn.commit_sequence != NO_SEQUENCE:
                self._unmarked.setdefault(txn.commit_sequence, set()).add(transactional_id)

    # -- start -------------------------------------------------------------------------------------------------

    def replay(self, transactional_id: str, txn: TransactionMetadata | None) -> None:
        """Apply a record of the commit log, the coordinator's log. `txn` is the state of the id; None if the id was
        forgotten.

        The ids can be looked up by producer id and by timeout only after `finish_replay`.
        """
        self.decided.pop(transactional_id, None)
        self.txns.pop(transactional_id, None)
        if txn is not None and txn.state.is_open:
            self.txns[transactional_id] = txn
            if txn.state.is_decided:
                self.decided[transactional_id] = None

    def finish_replay(self, now_ms: int) -> None:
        """Build the indexes by producer id and by timeout, after `replay` was called for all records. Times after
        `now_ms` become `now_ms`.
        """
        for transactional_id, txn in self.txns.items():
            self.txns[transactional_id] = txn.with_clamped_times(now_ms)
            self._index(transactional_id, self.txns[transactional_id])
