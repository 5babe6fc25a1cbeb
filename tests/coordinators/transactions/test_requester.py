"""Which requests come from the producer of a transaction, and the codes of those that do not."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.child_checks import ChildChecks
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.requester import Requester
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import JointName, child_id
from tests.coordinators.transactions.test_coordinator import coordinator

TXN = TransactionMetadata(5, 2, 60_000, TransactionState.EMPTY)


def a_requester():
    table = TransactionTable("", 1000, ProducerIds(10), lambda: lambda: True)
    table.put("a", TXN, [])
    return Requester(table, ChildChecks(table))


def test_the_transaction_of_an_id_is_that_of_the_table():
    requester = a_requester()
    assert requester.require_transaction("a") == TXN
    assert requester.require_producer("a", ProducerIdAndEpoch(5, 2)) == TXN


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [("", ErrorCode.invalid_request), ("b", ErrorCode.invalid_producer_id_mapping)],
)
def test_an_id_that_nobody_uses_is_refused(transactional_id, code):
    with pytest.raises(RefusedError) as refused:
        a_requester().require_transaction(transactional_id)
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        ((6, 2), ErrorCode.invalid_producer_id_mapping),
        ((5, 1), ErrorCode.producer_fenced),
        ((5, 3), ErrorCode.producer_fenced),
    ],
)
def test_another_producer_or_epoch_is_refused(shown, code):
    with pytest.raises(RefusedError) as refused:
        a_requester().require_producer("a", ProducerIdAndEpoch(*shown))
    assert refused.value.code is code


def test_a_child_whose_version_another_start_of_the_writer_has_begun_is_refused():
    c = coordinator()
    c.joint.begin_version(JointName("", "k"), 0, "s", now_ms=0)
    requester = Requester(c.table, c.joint.checks)
    with pytest.raises(RefusedError) as refused:
        requester.require_transaction(child_id("k", 0, "r", 1, 0))
    assert refused.value.code is not ErrorCode.invalid_producer_id_mapping, "it is not only unknown"
