"""The ids of the children of joint commits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.wire.extension.children import Child, JointName, child_id, child_of

ID = child_id("a:key", 7, "run/1", 0, "2", group="g")
PLAIN = "joint:k:1:r:0:"


def test_an_id_is_read_as_it_was_made():
    assert ID == "g/joint:a%3Akey:7:run%2F1:0:2"
    assert child_of(ID) == Child(JointName("g", "a:key"), 7, "run/1", "0", "2")


def test_an_id_of_another_form_is_that_of_no_child():
    assert child_of("joint:k:1:r:0") is None
    assert child_of(f"joint:k:{2**63}:r:0:0") is None
    assert child_of("k") is None


@pytest.mark.parametrize(
    "alias",
    [
        "joint:%6Frders:1:r:0:0",
        "joint:orders%3a:1:r:0:0",
        "joint:orders:01:r:0:0",
        "joint:orders:1:%72:0:0",
        "joint:orders:1:r:0:%30",
        "joint:or ders:1:r:0:0",
        "joint:%FF:1:r:0:0",
        "joint:\u0663:\u0663:r:0:0",
    ],
)
def test_a_child_has_one_id_so_that_no_other_passes_its_acls(alias):
    assert child_of(alias) is None


@pytest.mark.extended
@given(
    st.lists(
        st.sampled_from(["orders", "%6Frders", "1", "01", "a%3Ab", "a%3ab", "r", "%72", "ä"]),
        min_size=5,
        max_size=5,
    )
)
def test_two_ids_are_never_those_of_one_child(parts):
    transactional_id = "joint:" + ":".join(parts)
    child = child_of(transactional_id)
    if child is not None:
        assert (
            child_id(child.name.key, child.version, child.run, child.partition, child.attempt)
            == transactional_id
        )


def test_an_id_that_is_too_long_for_a_transaction_is_not_read():
    """What is read is remembered, and any client can send an id of 100 MB."""
    assert child_of(PLAIN + "0" * (1024 - len(PLAIN))) is not None
    assert child_of(PLAIN + "0" * (1025 - len(PLAIN))) is None
