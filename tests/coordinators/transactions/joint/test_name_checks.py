"""Which names a request about a joint commit may have, and which children it concerns."""

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.answers import ChildShown
from stablelog.coordinators.transactions.joint.name_checks import (
    CHILD_COUNT_MAX,
    check_belongs,
    check_child_count,
    check_names,
    is_of_run,
)
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import VERSION_MAX, JointName, child_id, child_of
from tests.coordinators.transactions.test_coordinator import coordinator

NAME = JointName("", "k")


def test_names_of_joint_commits_have_their_limits() -> None:
    c = coordinator()
    for key, version, run, fits in (
        ("k" * 255, 0, "r" * 100, True),
        ("ä" * 127, 2**63 - 1, "", True),
        ("k" * 256, 0, "", False),
        ("ä" * 128, 0, "", False),
        ("", 0, "", False),
        ("k", -1, "", False),
        ("k", 0, "r" * 101, False),
    ):
        answer = c.joint.begin_version(JointName("", key), version, run, now_ms=0).answer
        assert (answer.error is ErrorCode.none) == fits, (key[:1], len(key), version, len(run))


def refused(check: Callable[..., None], *args: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        check(*args)
    assert caught.value.code is ErrorCode.invalid_request
    return str(caught.value)


def test_a_name_that_is_not_valid_is_refused_with_its_limit() -> None:
    check_names(NAME, 0, None)
    check_names(JointName("payments", "k"), VERSION_MAX, "r")
    assert (
        refused(check_names, JointName("", ""), 0, None)
        == "the key of the joint commit is empty or too long: 1 to 255 bytes are allowed"
    )
    assert (
        refused(check_names, NAME, -1, None)
        == "version -1 of the joint commit is not valid: versions begin at 0"
    )
    assert refused(check_names, NAME, VERSION_MAX + 1, None).startswith(
        f"version {VERSION_MAX + 1} of the joint commit is not valid"
    )
    assert (
        refused(check_names, JointName("a/b", "k"), 0, None)
        == "'a/b' is not a valid name of a transaction group"
    )
    assert (
        refused(check_names, NAME, 0, "r" * 101)
        == "the name of the run (one start of the writer) is too long: at most 100 bytes are allowed"
    )


def test_too_many_children_are_refused_with_what_to_do() -> None:
    check_child_count(CHILD_COUNT_MAX)
    assert (
        "has 20001 transactions, and at most 20000 are allowed: write the same records with fewer"
        in refused(check_child_count, CHILD_COUNT_MAX + 1)
    )


def test_a_transaction_that_is_no_child_of_the_version_is_refused_by_its_id() -> None:
    own = child_id("k", 3, "r", 0, 0)
    check_belongs(NAME, 3, ChildShown(own, 7, 0))
    for other in (
        "plain",
        child_id("k", 4, "r", 0, 0),
        child_id("l", 3, "r", 0, 0),
        child_id("k", 3, "r", 0, 0, group="g"),
    ):
        assert refused(check_belongs, NAME, 3, ChildShown(other, 7, 0)) == (
            f"transactional id {other} does not belong to version 3 of joint commit 'k' in transaction group 'default'"
        )


def test_a_child_is_of_a_run_if_both_its_version_and_its_run_agree() -> None:
    child = child_of(child_id("k", 3, "r", 0, 0))
    assert child is not None
    assert is_of_run(child, 3, "r")
    assert not is_of_run(child, 4, "r")
    assert not is_of_run(child, 3, "s")
