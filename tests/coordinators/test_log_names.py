"""The names of the coordinators' logs: a group and its commit log name each other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.coordinators.log_names import commit_log_of, group_of_log, is_coordinator_log
from stablelog.wire.extension.transaction_groups import NAME_PATTERN
from tests.scale import examples


@settings(max_examples=examples(25))
@given(st.just("") | st.from_regex(NAME_PATTERN, fullmatch=True))
def test_a_group_is_found_by_the_name_of_its_commit_log(group):
    assert group_of_log(commit_log_of(group)) == group
    assert is_coordinator_log(commit_log_of(group))


def test_the_logs_of_the_default_group_and_of_consumer_groups_have_kafkas_names():
    assert commit_log_of("") == "__transaction_state"
    assert commit_log_of("payments") == "__transaction_state.payments"
    assert is_coordinator_log("__consumer_offsets")
    assert group_of_log("__consumer_offsets") is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "flights",
        "__transaction_state.",
        "__transaction_state2",
        "__transaction_state.a/b",
        "__transaction_state." + "x" * 101,
        "x__transaction_state.pay",
        "__consumer_offsets.pay",
    ],
)
def test_a_topic_of_another_name_is_no_coordinators_log(name):
    assert group_of_log(name) is None
    assert not is_coordinator_log(name)
