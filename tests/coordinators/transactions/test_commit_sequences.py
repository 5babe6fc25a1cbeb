"""The numbers of the commits of one group: each once, without gaps, and above all that a partition may have."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.commit_sequences import CommitSequences
from stablelog.errors import RefusedError
from tests.scale import examples


def test_the_first_commit_has_the_number_1():
    sequences = CommitSequences("")
    assert (sequences.last, sequences.first_undecided) == (0, 1)
    assert [sequences.assign_next() for _ in range(3)] == [1, 2, 3]
    assert (sequences.last, sequences.first_undecided, sequences.assigned_count) == (3, 4, 3)


def test_a_number_of_a_marker_is_new_only_if_the_commit_log_does_not_have_it():
    sequences = CommitSequences("")
    sequences.skip_past(4)
    assert not sequences.observe_marker(4)
    assert sequences.observe_marker(7)
    assert not sequences.observe_marker(7)
    assert not sequences.observe_marker(5)
    assert sequences.assign_next() == 8
    assert sequences.assigned_count == 1, "numbers that were met were not taken"


def test_no_commit_is_decided_while_numbers_may_be_missing_in_the_commit_log():
    sequences = CommitSequences("payments")
    sequences.are_known = False
    with pytest.raises(
        RefusedError, match=r"transaction group 'payments' cannot be committed yet: .* the last commits"
    ) as why:
        sequences.check_commit_allowed()
    assert why.value.code is ErrorCode.coordinator_load_in_progress
    sequences.are_known = True
    sequences.check_commit_allowed()


def test_no_other_commit_is_decided_while_one_is_held():
    sequences = CommitSequences("")
    sequences.assign_next()
    sequences.hold_last()
    assert (sequences.last, sequences.first_undecided) == (1, 1), "the held commit is not decided completely"
    with pytest.raises(
        RefusedError, match=r"the default .* a joint commit of many transactions. Try again"
    ) as why:
        sequences.check_commit_allowed()
    assert why.value.code is ErrorCode.coordinator_load_in_progress
    sequences.release_held()
    sequences.check_commit_allowed()
    assert sequences.first_undecided == 2


class Numbers(RuleBasedStateMachine):
    """Any sequence of commits, held commits, and markers that are found: no number comes twice."""

    def __init__(self):
        super().__init__()
        self.sequences, self.used, self.is_held = CommitSequences(""), [0], False

    @precondition(lambda self: not self.is_held)
    @rule()
    def commit(self):
        self.sequences.check_commit_allowed()
        assert self.sequences.assign_next() == self.used[-1] + 1
        self.used.append(self.sequences.last)

    @precondition(lambda self: not self.is_held and self.sequences.last > 0)
    @rule()
    def hold(self):
        self.sequences.hold_last()
        self.is_held = True

    @precondition(lambda self: self.is_held)
    @rule()
    def release(self):
        self.sequences.release_held()
        self.is_held = False

    @precondition(lambda self: not self.is_held)
    @rule(sequence=st.integers(1, 40))
    def meet(self, sequence):
        is_new = self.sequences.observe_marker(sequence)
        assert is_new is (sequence > self.used[-1])
        if is_new:
            self.used.append(sequence)

    @invariant()
    def the_last_number_is_the_greatest(self):
        assert self.sequences.last == self.used[-1]
        assert self.sequences.first_undecided == self.used[-1] + (not self.is_held)


Numbers.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=20, deadline=None)
TestNumbers = Numbers.TestCase
