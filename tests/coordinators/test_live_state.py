"""A checkpoint is written in slices, and other records come between them: replaying the log gives the newest state.

The histories of `test_transactions_model` write checkpoints so, with crashes in the middle, and compare each start with
one from a log without checkpoints; those of `test_group_model` do the same. Here are the rules that they have to catch
if they are broken.
"""

import random

import pytest

from stablelog.coordinators.live_state import LiveState
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.records import transaction_key
from stablelog.coordinators.transactions.recovery import DecisionHistory
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.table import UNDIVIDED_MAX, TransactionTable
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from tests.coordinators.transactions import test_model as model
from tests.coordinators.transactions.joint import test_model as joint_model


def all_made_at_the_beginning(live_state):
    def mutant(self):
        undivided, rest, _ = live_state(self)
        return LiveState(undivided, iter(list(rest)))

    return mutant


def decisions_behind_all_else(_live_state):
    def mutant(self):
        decided = list(self._open.decided)
        self._open.decided = {}
        undivided = self._undivided()
        self._open.decided = dict.fromkeys(decided)

        def rest():
            yield from self._rest()
            yield from ((key, value) for key, value in self._undivided() if key not in dict(undivided))

        return LiveState(undivided, rest())

    return mutant


def decisions_also_in_the_rest(live_state):
    def mutant(self):
        undivided, _, _ = live_state(self)

        def rest():
            yield from self.joints.records()
            for transactional_id in [*self._open.txns, *self._idle]:
                if (value := self._value(transactional_id)) is not None:
                    yield transaction_key(transactional_id), value

        return LiveState(undivided, rest())

    return mutant


def earlier_decisions_without_the_present_state(live_state):
    def mutant(self):
        undivided, rest, _ = live_state(self)
        count = 1 + sum(1 for _ in self.history.records())
        pending = {transaction_key(transactional_id) for transactional_id in self._open.decided}
        return LiveState(undivided[:count] + [r for r in undivided[count:] if r[0] in pending], rest)

    return mutant


# With a seed that finds it after few histories. If the code draws other histories, a later one of the 200 finds it.
MUTANTS = {
    all_made_at_the_beginning: 10,
    decisions_behind_all_else: 32,
    decisions_also_in_the_rest: 22,
    earlier_decisions_without_the_present_state: 28,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_checkpoint_that_breaks_a_rule_is_caught(mutant, monkeypatch) -> None:
    monkeypatch.setattr(TransactionTable, "live_state", mutant(TransactionTable.live_state))
    chance = random.Random(MUTANTS[mutant])
    with pytest.raises(AssertionError, match="a checkpoint has changed"):
        for _ in range(200):
            for run in (model.run, joint_model.run):
                run([chance.randrange(60) for _ in range(1500)])


def test_too_many_decisions_for_one_batch_make_no_checkpoint() -> None:
    history = DecisionHistory()
    for number in range(30):
        txn = TransactionMetadata(
            number,
            1,
            1,
            TransactionState.PREPARE_ABORT,
            PartitionSet({("t", number % 3)}),
            transaction_epoch=0,
        )
        for _ in range(2):
            history.add_decision(f"id-{number}", b"", txn)
    assert history.record_count == 60
    history.take_decisions(("t", 0), set(), lambda txn: txn)  # type: ignore[arg-type, return-value]
    assert history.record_count == 40
    coordinator = model.World(iter(())).new_coordinator()
    assert coordinator.table.live_state() is not None
    for number in range(UNDIVIDED_MAX + 1):
        coordinator.table.history.add_decision(
            f"id-{number}",
            b"",
            TransactionMetadata(number, 1, 1, TransactionState.PREPARE_ABORT, PartitionSet({("t", 0)})),
        )
    assert coordinator.table.live_state() is None
