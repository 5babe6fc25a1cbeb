"""Finds the transaction of the producer that has sent a request."""

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.child_checks import ChildChecks
from stablelog.coordinators.transactions.refusals import fenced_refusal, id_mapping_refusal
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from stablelog.errors import RefusedError


class Requester:
    """Finds the state of the transactional id that a request names, and checks that the request comes from the current
    producer of the id.

    Args:
        table: the state of the transaction group (topics and producers with one order of commits).
        checks: checks whether a child, one of the transactions that a joint commit commits together, may still be
            written.
    """

    def __init__(self, table: TransactionTable, checks: ChildChecks) -> None:
        self._table = table
        self._checks = checks

    def require_transaction(self, transactional_id: str) -> TransactionMetadata:
        """Return the state of a transactional id.

        Raises:
            RefusedError: the id is empty or unknown; or it is that of a child (one of the transactions that a joint
                commit commits together) whose joint commit is over.
        """
        if not transactional_id:
            raise RefusedError(ErrorCode.invalid_request, "the request has no transactional id")
        self._checks.check_open(transactional_id)
        txn = self._table.get(transactional_id)
        if txn is None:
            raise RefusedError(
                ErrorCode.invalid_producer_id_mapping,
                f"no producer uses the transactional id {transactional_id}",
            )
        return txn

    def require_producer(self, transactional_id: str, shown: ProducerIdAndEpoch) -> TransactionMetadata:
        """Return the state of a transactional id, if the request comes from its current producer.

        Args:
            transactional_id: the transactional id of the request.
            shown: the producer id and epoch of the request.

        Raises:
            RefusedError: the id is unknown, or the request's producer id or epoch is not the current one.
        """
        txn = self.require_transaction(transactional_id)
        client = txn.client
        if shown.producer_id != client.producer_id:
            raise id_mapping_refusal(transactional_id, shown, txn)
        if shown.producer_epoch != client.producer_epoch:
            raise fenced_refusal(transactional_id, shown, txn)
        return txn
