"""The long runs: each part has its seed, a failed one stops nothing, and the documents name every part."""

import shlex
from pathlib import Path

import pytest

from tests import documented
from tests.night import PARTS, ROOT, Part, run, seed_of, table

SAYS = "import os, sys; print('STABLELOG_SEED is', os.environ['STABLELOG_SEED'], sys.argv[1:]); sys.exit({})"


def part(name, code, **more):
    words = ("-c", SAYS.replace("{}", str(code)).replace("{", "{{").replace("}", "}}"), "{seed}:{end}")
    return Part(name, words, **more)


def test_every_part_runs_with_its_seed_also_after_one_that_failed(tmp_path):
    said = []
    parts = [part("one", 0, seeds=5), part("two", 3, environment={"STABLELOG_KILLS": "9"}), part("three", 0)]
    results = run(parts, 7, tmp_path, said.append)
    assert [result.code for result in results] == [0, 3, 0]
    seeds = [seed_of(one, 7) for one in parts]
    assert [result.seed for result in results] == seeds
    assert (
        tmp_path / "one.log"
    ).read_text() == f"STABLELOG_SEED is {seeds[0]} ['{seeds[0]}:{seeds[0] + 5}']\n"
    assert any(
        line.startswith(f"two: seed {seeds[1]}: STABLELOG_KILLS=9 STABLELOG_SEED={seeds[1]}") for line in said
    )
    assert f"    STABLELOG_SEED is {seeds[1]} ['{seeds[1]}:{seeds[1] + 1}']" in said
    assert not any(line.startswith(f"    STABLELOG_SEED is {seeds[0]}") for line in said)
    lines = list(table(results, 7))
    assert lines[0] == "seed 7"
    assert [line.split()[0] for line in lines[2:]] == ["one", "two", "three", "all"]
    assert lines[3].endswith("FAILED (3)")
    assert lines[2].endswith("ok")


def test_a_parts_seed_is_its_own():
    assert len({seed_of(one, 7) for one in PARTS}) == len(PARTS)
    assert seed_of(PARTS[0], 7) == seed_of(PARTS[0], 7) != seed_of(PARTS[0], 8)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_names_what_is_there(part):
    command = part.command(3)
    assert command[0] == "-m"
    if command[1] == "pytest":
        assert (ROOT / command[-1]).exists()
        assert "--hypothesis-seed=3" in command
    else:
        module = ROOT / command[1].replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists()
    for name in part.environment:
        users = [path for path in (ROOT / "tests").rglob("*.py") if f'"{name}"' in path.read_text()]
        assert {path.name for path in users} - {"night.py", Path(__file__).name}, f"no test reads {name}"
    assert f"`{part.name}`" in documented.section("Night")
    assert shlex.join(part.words)  # it can be shown as a command
