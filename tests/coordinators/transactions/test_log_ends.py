"""Where the partitions of a transaction ended when it was decided: kept as bytes, read like a mapping."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.coordinators.transactions.log_ends import END, NO_ENDS, OFFSET_UNKNOWN, LogEnd, LogEnds
from stablelog.errors import DamageError
from tests.scale import examples

partitions = st.tuples(st.sampled_from("abc"), st.integers(0, 9))


@settings(max_examples=examples(25))
@given(
    st.dictionaries(
        partitions, st.builds(LogEnd, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=6
    )
)
def test_ends_that_are_read_from_a_record_are_those_of_its_partitions_in_their_order(expected):
    ends = LogEnds(list(expected), b"".join(END.pack(*end) for end in expected.values()))
    assert dict(ends) == expected
    assert list(ends) == list(expected)
    assert len(ends) == len(expected)
    assert ends.get(("missing", 0)) is None


def test_ends_of_one_leader_epoch_are_encoded_by_partition():
    ends = LogEnds.from_offsets(7, [("t", 1), ("t", 0)], [5, OFFSET_UNKNOWN])
    assert ends == {("t", 1): (7, 5), ("t", 0): (7, OFFSET_UNKNOWN)}
    assert ends.content == END.pack(7, 5) + END.pack(7, OFFSET_UNKNOWN)
    assert ends.leader_epoch == 7


def test_an_unknown_end_is_behind_every_offset():
    assert OFFSET_UNKNOWN == 2**63 - 1


def test_a_partition_that_is_not_there_is_a_key_error():
    with pytest.raises(KeyError):
        LogEnds.from_offsets(7, [("t", 1)], [5])["t", 2]


@pytest.mark.parametrize("size", [0, 11, 13, 24])
def test_another_number_of_ends_than_of_partitions_is_damage(size):
    with pytest.raises(
        DamageError, match=f"the commit log has {size} bytes of partition ends for 1 partitions"
    ):
        LogEnds([("t", 0)], bytes(size))


def test_no_ends_are_no_entry_and_false():
    assert not NO_ENDS
    assert dict(NO_ENDS) == {}
