"""The two commands: see the package."""

import argparse
import random
import sys
import time
from collections import Counter

import tests.mutants
from tests.mutants import drawn
from tests.mutants.rules import AREAS, RULES, Rule
from tests.mutants.runs import Copy, Run, run_all

WORKERS = 2
SEED_MAX = 10**6
TEST_SECONDS_MAX = 60


def tell(text):
    print(text, flush=True)


def try_rules(rules: list[Rule], workers: int) -> bool:
    """Apply the mutant of each rule, and run its test. Returns whether all were caught."""
    began = time.monotonic()
    tests = list(dict.fromkeys(rule.test for rule in rules))
    unchanged = Rule("", "", rules[0].path, "", "", "")

    def work(copy: Copy, rule: Rule) -> Run:
        limits = {"seconds_max": 10 * TEST_SECONDS_MAX, "test_seconds_max": TEST_SECONDS_MAX}
        if rule is unchanged:
            return copy.run(tests, **limits)
        with copy.changed(rule.path, rule.mutated()):
            return copy.run([rule.test], **limits)

    survivors, failing, done = [], None, 0
    for rule, run in run_all([unchanged, *rules], work, workers):
        if rule is unchanged:
            if run.failed is not None or run.count < len(tests):
                failing = run
                break
            continue
        done += 1
        if run.failed is None:
            survivors.append(rule)
        tell(f"{done}/{len(rules)} {'caught  ' if run.failed else 'SURVIVES'} {rule.area}: {rule.says}")
    if failing is not None:
        tell(failing.output)
        tell(
            f"{failing.count} of {len(tests)} tests pass without any mutant: nothing was proven. "
            + (f"{failing.failed} fails" if failing.failed else "Some are not there")
        )
        return False
    counts = Counter(rule.area for rule in rules)
    lost = Counter(rule.area for rule in survivors)
    tell(f"\n{'area':34}{'rules':>6}{'survive':>9}")
    for area in AREAS:
        tell(f"{area:34}{counts[area]:>6}{lost[area]:>9}")
    tell(f"{'all':34}{len(rules):>6}{len(survivors):>9}   {(time.monotonic() - began) / 60:.1f} minutes")
    for rule in survivors:
        tell(f"\n{rule.says}\n{rule.path}\n- {rule.old}\n+ {rule.new}\n{rule.test} passes with it")
    return not survivors


def main():
    """Run what the command line asks for; the exit code is 1 if a mutant survives that may not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=tests.mutants.__doc__.splitlines()[0]
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="mutants that are tried at once")
    commands = parser.add_subparsers(dest="command", required=True)
    rules = commands.add_parser("rules", help="a mutant for each protocol rule")
    rules.add_argument("--only", default="", help="rules whose area or sentence has this text")
    random_ones = commands.add_parser("random", help="mutants that a seed draws")
    random_ones.add_argument("--seed", type=int, help="drawn, and printed, if none is given")
    random_ones.add_argument("--count", type=int, default=500)
    random_ones.add_argument("--only", default="", help="in source files whose path has this text")
    random_ones.add_argument(
        "--at-most",
        type=float,
        help="percent that may survive, with a reason or without one; without this, 5, each with a reason",
    )
    asked = parser.parse_args()
    if asked.command == "rules":
        chosen = [rule for rule in RULES if asked.only in rule.area or asked.only in rule.says]
        if not chosen:
            parser.error(f"no rule has {asked.only!r}")
        sys.exit(not try_rules(chosen, asked.workers))
    seed = random.SystemRandom().randrange(SEED_MAX) if asked.seed is None else asked.seed
    limits = {} if asked.at_most is None else {"surviving_max": asked.at_most / 100, "needs_reasons": False}
    sys.exit(not drawn.run(seed, asked.count, asked.workers, tell, only=asked.only, **limits))


if __name__ == "__main__":
    main()
