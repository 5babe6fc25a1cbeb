"""The ids of the children of joint commits."""

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


def test_an_id_that_is_too_long_for_a_transaction_is_not_read():
    """What is read is remembered, and any client can send an id of 100 MB."""
    assert child_of(PLAIN + "0" * (1024 - len(PLAIN))) is not None
    assert child_of(PLAIN + "0" * (1025 - len(PLAIN))) is None
