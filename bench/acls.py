"""How long does the check of an ACL take, with 10,000 rules? The first check of a resource, and one that is cached.

Typical rules are those of many topics and users. In the worst case each rule has a pattern that selects the one resource
which is checked, with each length of a prefix.
"""

import random
import statistics
import time
from collections.abc import Sequence
from typing import Final

from bench.contestants import OURS
from bench.report import Section, Wanted
from stablelog.security.authorizer import Authorizer
from stablelog.wire.acls import AclBinding, Operation, Pattern, PatternType, Permission, ResourceType

RULE_COUNT: Final = 10_000
FIRST_CHECKS: Final = 2_000
CACHED_CHECKS: Final = 50_000
HOST: Final = "10.0.0.1"
FIRST_US, CACHED_US = 100.0, 2.0
LONG_NAME: Final = "topic-" + "x" * 243
OPERATIONS: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
)


def _rule(
    chance: random.Random, name: str, kind: PatternType, user_count: int, *, denied_share: float
) -> AclBinding:
    return AclBinding(
        Pattern(ResourceType.TOPIC, name, kind),
        f"User:{chance.randrange(user_count)}",
        "*" if chance.random() < 0.7 else f"10.0.0.{chance.randrange(250)}",
        chance.choice(OPERATIONS),
        Permission.DENY if chance.random() < denied_share else Permission.ALLOW,
    )


def typical(chance: random.Random, count: int) -> tuple[list[AclBinding], Sequence[str]]:
    """Rules of 2,000 topics in 50 teams, a fifth of them for the prefix of a team, and the names of the topics."""
    names = [f"team{number % 50:02}.orders.{number}" for number in range(2_000)]
    rules = []
    for _ in range(count):
        name, is_prefix = chance.choice(names), chance.random() < 0.2
        kind = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
        rules.append(_rule(chance, name[:7] if is_prefix else name, kind, 300, denied_share=0.05))
    return rules, names


def worst(chance: random.Random, count: int) -> tuple[list[AclBinding], Sequence[str]]:
    """Rules of which each selects one topic, by prefixes of each length and by its whole name."""
    rules = []
    for number in range(count):
        name = LONG_NAME[: number % len(LONG_NAME) + 1]
        kind = PatternType.LITERAL if name == LONG_NAME else PatternType.PREFIXED
        rules.append(_rule(chance, name, kind, 97, denied_share=0.15))
    return rules, [LONG_NAME]


def check_us(authorizer: Authorizer, names: Sequence[str], count: int, *, is_first: bool) -> float:
    """The median time of a check, in microseconds."""
    took = []
    for number in range(count):
        if is_first:
            authorizer.change()  # The cache is empty then.
        principal, name = f"User:{number % 97}", names[number % len(names)]
        if not is_first:
            authorizer.allows(principal, HOST, Operation.READ, ResourceType.TOPIC, name)
        begun = time.perf_counter_ns()
        authorizer.allows(principal, HOST, Operation.READ, ResourceType.TOPIC, name)
        took.append(time.perf_counter_ns() - begun)
    return statistics.median(took) / 1_000


def run(run_count: int, divisor: int) -> list[Section]:
    """Measure both checks with each kind of rules."""
    section = Section(f"Check of an ACL, {RULE_COUNT:,} rules", beside="")
    for kind, make in (("typical", typical), ("worst", worst)):
        rules, names = make(random.Random(1), RULE_COUNT)
        authorizer = Authorizer(rules)
        first = section.row(f"{kind} rules, first, µs", wanted=Wanted(FIRST_US, at_most=True, of_figure=True))
        again = section.row(
            f"{kind} rules, cached, µs", wanted=Wanted(CACHED_US, at_most=True, of_figure=True)
        )
        for _ in range(run_count):
            first.add(OURS, check_us(authorizer, names, FIRST_CHECKS // divisor, is_first=True))
            again.add(OURS, check_us(authorizer, names, CACHED_CHECKS // divisor, is_first=False))
    return [section]
