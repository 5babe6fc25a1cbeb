"""Which producer ids may have another holder, and when. The histories find it if a rule is broken."""

import random

import pytest

from stablelog.coordinators.transactions import spare_ids
from stablelog.coordinators.transactions.ending import TransactionEnder
from stablelog.coordinators.transactions.joint.table import JointTable
from stablelog.coordinators.transactions.recovery import DecisionHistory
from stablelog.coordinators.transactions.spare_ids import SpareIds, durability_unknown
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch
from tests.coordinators.transactions.joint import test_model as joint_model


def test_an_identity_waits_for_its_barrier_and_for_those_before_it() -> None:
    durable = {1: False, 2: True}
    spare = SpareIds()
    spare.add_identity(ProducerIdAndEpoch(1, 5), lambda: durable[1])
    spare.add_identity(ProducerIdAndEpoch(2, 7), lambda: durable[2])
    assert spare.take_identity() is None
    durable[1] = True
    assert sorted(filter(None, (spare.take_identity(), spare.take_identity()))) == [(1, 5), (2, 7)]
    assert spare.take_identity() is None


def test_an_identity_whose_markers_may_never_be_durable_is_dropped() -> None:
    spare = SpareIds()
    spare.add_identity(ProducerIdAndEpoch(1, 5), durability_unknown)
    spare.add_identity(ProducerIdAndEpoch(2, 7), lambda: True)
    assert spare.take_identity() == (2, 7)
    assert spare.take_identity() is None
    assert len(spare) == 0


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_ids, "WAITING_MAX", 3)
    spare = SpareIds()
    for number in range(5):
        spare.add_identity(ProducerIdAndEpoch(number, 0), lambda: False)
    assert len(spare) == 3


def before_the_markers_are_durable(monkeypatch):
    release = SpareIds.add_identity
    monkeypatch.setattr(
        SpareIds, "add_identity", lambda self, identity, _: release(self, identity, lambda: True)
    )


def under_the_same_epoch(monkeypatch):
    def first_identity(self, transactional_id, records):
        spare = self._table.take_spare_identity()
        return spare or ProducerIdAndEpoch(self._table.take_producer_id(records), 0)

    monkeypatch.setattr(TransactionEnder, "first_identity", first_identity)


def under_the_epoch_before(monkeypatch):
    release = SpareIds.add_identity

    def lower(self, identity, barrier):
        release(self, identity._replace(producer_epoch=max(0, identity.producer_epoch - 1)), barrier)

    monkeypatch.setattr(SpareIds, "add_identity", lower)


def to_ids_that_are_no_children(monkeypatch):
    def first_identity(self, transactional_id, records):
        spare = self._table.take_spare_identity()
        return (
            self.next_identity(spare, records)
            if spare
            else ProducerIdAndEpoch(self._table.take_producer_id(records), 0)
        )

    monkeypatch.setattr(TransactionEnder, "first_identity", first_identity)


def of_ids_that_may_come_back(monkeypatch):
    forget = TransactionTable.forget

    def and_release(self, transactional_id, records):
        identity = self.get(transactional_id).client
        forget(self, transactional_id, records)
        if not self.joints.is_over(transactional_id):
            self._spare_ids.add_identity(identity, lambda: True)

    monkeypatch.setattr(TransactionTable, "forget", and_release)


def while_a_partition_may_lack_a_marker_from_before_the_start(monkeypatch):
    monkeypatch.setattr(DecisionHistory, "has_decision_of", lambda _self, _producer_id: False)


def without_a_last_version(monkeypatch):
    """A late child is not known by its version, and begins anew."""
    monkeypatch.setattr(JointTable, "is_over", lambda _self, _transactional_id: True)


MUTANTS = (
    before_the_markers_are_durable,
    under_the_same_epoch,
    under_the_epoch_before,
    to_ids_that_are_no_children,
    of_ids_that_may_come_back,
    while_a_partition_may_lack_a_marker_from_before_the_start,
    without_a_last_version,
)


@pytest.mark.extended
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_histories_find_a_producer_id_that_is_passed_on(mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    chance = random.Random(5)
    with pytest.raises(AssertionError):
        for _ in range(60):
            joint_model.run([chance.randrange(60) for _ in range(3000)])
