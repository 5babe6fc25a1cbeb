"""`make night`: the long runs, one after the other, each with a seed of its own.

    make night
    make night SEED=7 ONLY="kills programs"
    python -m tests.night --seed 7 --only kills

The seed on the command line gives each part its seed. A part's command is printed with its seed, so that it can be run again
by itself. A part that fails does not stop the others; in the end a table says how each went, and the exit code is 1 if one
failed. What a part prints goes to a file of its own; the end of a failed part's file is shown.
"""

import argparse
import os
import random
import shlex
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "target" / "night"
SEED_MAX = 10**6
LAST_LINES = 40
PYTEST = ("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Part:
    """One long run.

    Attributes:
        name: for `--only`.
        words: what Python is called with; `{seed}` and `{end}` are the part's seed, and the number `seeds` behind it.
        environment: variables that say how much is done.
        seeds: how many seeds the part takes, from its own on.
    """

    name: str
    words: tuple
    environment: dict = field(default_factory=dict)
    seeds: int = 1

    def command(self, seed):
        """The words after `python`, with this seed."""
        return [word.format(seed=seed, end=seed + self.seeds) for word in self.words]

    def variables(self, seed):
        """What the environment says, with this seed."""
        return {**self.environment, "STABLELOG_SEED": str(seed), "PYTHONHASHSEED": "0"}


def tests(path, *more):
    """Pytest on a path, with Hypothesis's seed."""
    return (*PYTEST, "--hypothesis-seed={seed}", *more, path)


PARTS = (
    Part("kills", ("-m", "tests.chaos.kills", "--kills", "1000", "--seed", "{seed}")),
    Part("transactions", tests("tests/chaos/test_kill.py"), {"STABLELOG_KILLS": "200"}),
    Part(
        "tiered-kills",
        tests("tests/broker/tiering/test_kill.py"),
        {"STABLELOG_KILLS": "200", "STABLELOG_NIGHT": "1"},
    ),
    Part("worst-requests", tests("tests/broker/apis/test_worst_requests.py"), {"STABLELOG_WORST_SHARE": "1"}),
    Part("restores", tests("tests/ops/test_restore.py"), {"STABLELOG_KILLS": "400"}),
    Part("cuts", tests("tests/chaos/test_cut_kill.py"), {"STABLELOG_KILLS": "60"}),
    Part("copiers", tests("tests/client/test_copier.py"), {"STABLELOG_KILLS": "30"}),
    Part(
        "kafka-copiers",
        tests("tests/java/test_copier.py"),
        {"STABLELOG_KILLS": "30", "STABLELOG_NIGHT": "1"},
    ),
    Part(
        "client-threads",
        ("-m", "tests.chaos.client_rounds", "--face", "threads", "--seed", "{seed}", "--rounds", "100"),
        seeds=100,
    ),
    Part(
        "client-asyncio",
        ("-m", "tests.chaos.client_rounds", "--face", "asyncio", "--seed", "{seed}", "--rounds", "100"),
        seeds=100,
    ),
    Part("java", tests("tests/java/test_kill.py"), {"STABLELOG_KILLS": "40"}),
    Part("streams", tests("tests/java/test_streams.py"), {"STABLELOG_KILLS": "15"}),
    Part(
        "streams-instances",
        tests("tests/java/test_streams_instances.py"),
        {"STABLELOG_KILLS": "30", "STABLELOG_NIGHT": "1"},
    ),
    Part("connect", tests("tests/java/test_connect.py"), {"STABLELOG_KILLS": "30", "STABLELOG_NIGHT": "1"}),
    Part(
        "mirror-maker",
        tests("tests/java/test_mirror_maker.py"),
        {"STABLELOG_KILLS": "20", "STABLELOG_NIGHT": "1"},
    ),
    Part("frameworks", tests("tests/frameworks"), {"STABLELOG_KILLS": "20", "STABLELOG_NIGHT": "1"}),
    Part(
        "spark",
        tests("tests/chaos/test_spark_kill.py"),
        {"STABLELOG_NIGHT": "1", "STABLELOG_SPARK_KILLS": "110", "STABLELOG_SPARK_ROWS": "100000"},
    ),
    Part(
        "spark-cuts",
        tests("tests/spark/source/test_cuts.py", "-k", "sum_to_zero"),
        {"STABLELOG_SEEDS": "20"},
        20,
    ),
    Part("histories", tests("tests/log/test_model.py"), {"STABLELOG_HISTORIES": "5000"}),
    Part("proofs", tests("tests/batch/test_proof.py"), {"STABLELOG_PROVEN_BATCHES": "30000"}),
    Part(
        "bombs",
        tests("tests/broker/apis/test_hostile_requests.py", "-k", "bombs"),
        {"STABLELOG_BOMBS": "100"},
    ),
    Part(
        "pending-offsets",
        tests("tests/broker/durability/test_pending_offsets.py"),
        {"STABLELOG_OFFSETS_LIVES": "200"},
        200,
    ),
    Part("churn", tests("tests/broker/test_churn.py"), {"STABLELOG_CHURN": "10"}),
    Part("cut-histories", ("-m", "tests.cuts.history", "--seeds", "{seed}:{end}"), seeds=10_000),
    Part(
        "retention-histories",
        ("-m", "tests.commit_order.retention_history", "--seeds", "{seed}:{end}"),
        seeds=10_000,
    ),
    Part(
        "served-retention",
        tests("tests/broker/test_served_retention.py"),
        {"STABLELOG_SERVED_HISTORIES": "1000"},
        1_000,
    ),
    Part(
        "retention-clients",
        tests("tests/clients/test_retention.py"),
        {"STABLELOG_RETENTION_TOPICS": "200"},
        200,
    ),
    Part(
        "retention-reads",
        tests("tests/spark/objects/test_object_retention.py"),
        {"STABLELOG_RETENTION_READS": "20"},
        20,
    ),
    Part("interrupted", tests("tests/client/test_interrupted.py"), {"STABLELOG_LINES": "1000000"}),
    Part(
        "parent-deaths",
        tests("tests/test_temporary_data.py", "--timeout=7200"),
        {"STABLELOG_PARENT_DEATHS": "0"},
    ),
    Part(
        "positions",
        tests("tests/client/test_positions.py", "tests/client/test_lives_of_positions.py"),
        {"STABLELOG_POSITION_STEPS": "500"},
    ),
    Part("programs", tests("tests/client/test_programs.py"), {"STABLELOG_PROGRAMS": "50"}, 50),
    Part(
        "full-disk",
        tests("tests/broker/test_full_disk.py", "-k", "at_any_call"),
        {"STABLELOG_FULL_DISK_LIVES": "100"},
    ),
    Part(
        "dead-topics",
        tests("tests/broker/tiering/test_churn.py", "--timeout=3600"),
        {"STABLELOG_DEAD_TOPICS": "100"},
    ),
    Part("damage", tests("tests/damage"), {"STABLELOG_DAMAGED_POSITIONS": "3"}),
    Part("long", tests("tests", "-m", "night"), {"STABLELOG_NIGHT": "1"}),
    Part("rules", ("-m", "tests.mutants", "rules")),
    Part(
        "random-mutants",
        ("-m", "tests.mutants", "random", "--seed", "{seed}", "--count", "500", "--at-most", "8"),
    ),
    Part(
        "frames",
        tests("tests/broker/network/test_hostile_frames.py", "--timeout=20000"),
        {"STABLELOG_FRAMES": "10000000", "STABLELOG_SOCKET_FRAMES": "100000"},
    ),
    Part("hostile", tests("tests/chaos/test_hostile.py"), {"STABLELOG_HOSTILE": "1"}),
    Part(
        "properties",
        tests("tests", "-m", "hypothesis", "-n", "2", "--deselect", "tests/log/test_model.py"),
        {"STABLELOG_EXAMPLES": "20"},
    ),
)


@dataclass
class Result:
    """How a part went."""

    part: Part
    seed: int
    seconds: float
    code: int

    @property
    def line(self):
        """Its line of the table."""
        verdict = "ok" if self.code == 0 else f"FAILED ({self.code})"
        return f"{self.part.name:16}{self.seed:>8}{self.seconds / 60:>9.1f}  {verdict}"


def seed_of(part, root_seed):
    """The part's seed: other parts' do not change it."""
    return random.Random(f"{root_seed} {part.name}").randrange(SEED_MAX)


def run(parts, root_seed, logs, tell):
    """Run the parts, one after the other. Returns a result for each.

    Args:
        parts: what to run.
        root_seed: gives each its seed.
        logs: directory for what they print.
        tell: called with each line.
    """
    logs.mkdir(parents=True, exist_ok=True)
    results = []
    for part in parts:
        seed = seed_of(part, root_seed)
        command, variables = part.command(seed), part.variables(seed)
        shown = " ".join(f"{name}={value}" for name, value in variables.items())
        tell(f"{part.name}: seed {seed}: {shown} python {shlex.join(command)}")
        log = logs / f"{part.name}.log"
        began = time.monotonic()
        with log.open("wb") as output:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=ROOT,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        results.append(Result(part, seed, time.monotonic() - began, done.returncode))
        tell(f"{part.name}: {results[-1].line.split(maxsplit=2)[2]}; {log}")
        if done.returncode:
            with log.open(errors="replace") as lines:
                for line in deque(lines, LAST_LINES):
                    tell(f"    {line.rstrip()}")
    return results


def table(results, root_seed):
    """The lines of the table."""
    yield f"seed {root_seed}"
    yield f"{'part':16}{'seed':>8}{'minutes':>9}"
    yield from (result.line for result in results)
    yield f"{'all':16}{'':8}{sum(result.seconds for result in results) / 60:>9.1f}"


def main():
    """Run what the command line asks for."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m tests.night", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="drawn, and printed, if none is given")
    parser.add_argument("--only", nargs="*", choices=names, help=f"these parts: {', '.join(names)}")
    asked = parser.parse_args()
    root_seed = random.SystemRandom().randrange(SEED_MAX) if asked.seed is None else asked.seed
    parts = [part for part in PARTS if not asked.only or part.name in asked.only]

    def tell(text):
        print(text, flush=True)

    tell(f"seed {root_seed}: {', '.join(part.name for part in parts)}")
    results = run(parts, root_seed, LOGS, tell)
    for line in table(results, root_seed):
        tell(line)
    sys.exit(any(result.code for result in results))


if __name__ == "__main__":
    main()
