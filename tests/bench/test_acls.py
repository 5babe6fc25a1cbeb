"""The benchmark of ACLs runs here at a small size. The speed is measured only by the benchmark."""

import random

import pytest

from bench import acls
from bench.contestants import OURS
from stablelog.security.authorizer import Authorizer
from stablelog.wire.acls import Operation, ResourceType


@pytest.mark.extended
def test_first_and_cached_checks_are_measured():
    (section,) = acls.run(1, 200)
    found = {row.what: row.median(OURS) for row in section.rows}
    assert found.keys() == {
        f"{kind} rules, {which}, µs" for kind in ("typical", "worst") for which in ("first", "cached")
    }
    assert all(figure > 0 for figure in found.values())


@pytest.mark.parametrize("make", [acls.typical, acls.worst])
def test_the_rules_decide_of_what_is_checked(make):
    rules, names = make(random.Random(1), 1_000)
    authorizer = Authorizer(rules)
    assert len(rules) == 1_000
    found = {
        authorizer.allows(f"User:{user}", acls.HOST, Operation.READ, ResourceType.TOPIC, name)
        for user in range(97)
        for name in names[:50]
    }
    assert found == {True, False}
