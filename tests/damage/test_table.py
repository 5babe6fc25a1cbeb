"""Every row of the table of lost and damaged files: a file is damaged, and a broker is started on the directory.

`make test` walks each row with a few seeded positions. `make night` walks more positions, on more directories.
"""

import os
import random
from collections import Counter

import pytest

from stablelog.batch.header import headers_in
from tests.damage.directories import DATA, Directories
from tests.damage.table import (
    COORDINATOR_LOG,
    COORDINATORS,
    NOTHING,
    OUTCOMES,
    kinds_of,
    names_in,
    outcome_of,
    read_rows,
    read_table,
)
from tests.damage.walk import FLIPPED, MISSING, NO_START, OFFLINE, TORN, Damage, Place

SEED = int(os.environ.get("STABLELOG_SEED", "1"))
POSITIONS = int(
    os.environ.get("STABLELOG_DAMAGED_POSITIONS", "0")
)  # of each file; 0: a few files of each kind
QUICK_PLACES = ("stopped", "killed")
INTERRUPTED = ("*.swap", "*.deleted", "*.cleaned")  # what a crash leaves of a compaction
TABLE = read_table()

# The directories take longer to make than the tests: one worker makes them, once.
pytestmark = pytest.mark.xdist_group("damage")


@pytest.fixture(scope="module")
def directories():
    return Directories().by_name


def test_the_table_has_a_row_for_each_kind_of_file():
    rows = read_rows("The data directory")
    named = names_in(row[0] for row in rows if row[0] != "name")
    named -= {".broker.log", ".broker.log.1"}  # They are for people: no program reads them.
    told = names_in(row[0] for row in read_rows("Lost and damaged files") if len(row) == 4)
    assert told == named


def test_every_phrase_of_the_table_is_known():
    for phrases in TABLE.values():
        if phrases != [NOTHING]:
            assert [outcome_of(phrase) for phrase in phrases]


def damages(kind, disk, rng):
    """Damages of a kind of file: by column, one for each directory that has such a file.

    Args:
        kind: row of the table.
        disk: with the directory.
        rng: chooses files and positions.
    """
    homes = {}
    for path in kinds_of(disk).get(kind, ()):
        homes.setdefault(path if disk.is_dir(path) else path.parent, []).append(path)
    for paths in homes.values():
        filled = [path for path in paths if not disk.is_dir(path) and disk.size(path)]
        for path in paths if POSITIONS else [rng.choice(filled or paths)]:
            yield Damage(path, MISSING)
            size = 0 if disk.is_dir(path) else disk.size(path)
            if size:
                at = {rng.randrange(size) for _ in range(POSITIONS or 1)}
                cuts = at | ({0, size - 1} if POSITIONS else set())
                if path.suffix == ".log":  # behind a whole batch, where nothing in the file tells
                    cuts = cuts | {
                        rng.choice([begin for begin, _ in headers_in(disk.read_bytes(path))] or [0])
                    }
                if path.suffix == ".json" and disk.read_bytes(path).endswith(b"\n"):
                    cuts = {min(cut, size - 2) for cut in cuts}  # without its last line end it says the same
                yield from (Damage(path, TORN, cut) for cut in sorted(cuts))
                at |= {0, size - 1} if POSITIONS else set()
                if path.name == "recovery-point-offset-checkpoint":
                    at = {0}  # Kafka's file has no CRC: a changed offset is not seen, as the table says
                yield from (Damage(path, FLIPPED, place, rng.randrange(8)) for place in at)


def rounds(found, place_number):
    """Damages that are made together: of different partitions, whose damage does not stop the broker.

    Without STABLELOG_DAMAGED_POSITIONS, each directory gets a fifth of them, each another one; and
    few of the coordinators, each of which needs a start of its own.
    """
    together, alone, counts = {}, [], Counter()
    for kind, damage in found:
        at, number = damage.partition, counts[kind, damage.what]
        counts[kind, damage.what] += 1
        if at is None or at[0].startswith("__"):
            counts["coordinators"] += at is not None
            is_own = at is None or kind in (COORDINATORS, COORDINATOR_LOG)
            if POSITIONS or (is_own and number < 2) or (not is_own and counts["coordinators"] % 16 == 0):
                alone.append([(kind, damage)])
        elif POSITIONS or kind in INTERRUPTED or (number + place_number) % 5 == 0:
            together.setdefault(at, []).append((kind, damage))
    while any(together.values()):
        yield [rest.pop() for rest in together.values() if rest]
    yield from alone


def is_coordinators(damage):
    """Whether a file in a coordinator's directory is damaged."""
    return (
        damage.partition is not None and damage.partition[0].startswith("__") and damage.path.parent != DATA
    )


def places(directories):
    """The directories, with the kinds of files that are damaged in each: those of an interrupted compaction in few."""
    kinds = sorted({kind for kind, _ in TABLE})
    for name in directories:
        if not name.startswith("compacting") and (POSITIONS or name in QUICK_PLACES):
            yield name, [kind for kind in kinds if kind not in INTERRUPTED]
    met = set()
    for name, disk in directories.items():
        if not name.startswith("compacting"):
            continue
        filled = {
            kind
            for kind, paths in kinds_of(disk).items()
            if kind in INTERRUPTED and any(map(disk.size, paths))
        }
        there = set(INTERRUPTED) & filled
        if there - (set() if POSITIONS else met):
            met |= there
            yield name, sorted(there)


@pytest.fixture(scope="module")
def outcomes(directories):
    """By kind and column: (outcome, directory, damage) of each damage. What was wrong stands behind None."""
    found = {}
    for number, (name, kinds) in enumerate(places(directories)):
        rng = random.Random(f"{SEED} {name}")
        place = Place(name, directories[name])
        todo = [(kind, damage) for kind in kinds for damage in damages(kind, place.disk, rng)]
        for together in rounds(todo, number):
            kind_of = {damage: kind for kind, damage in together}
            try:
                walked = place.walk(list(kind_of))
            except Exception as error:  # a walk that fails does not keep the others from being made
                found.setdefault(None, []).append(
                    f"{name}: {'; '.join(map(str, kind_of))}: {type(error).__name__}: {error}"
                )
                continue
            for damage, outcome in walked.items():
                if outcome is NO_START and is_coordinators(damage) and kind_of[damage] != COORDINATOR_LOG:
                    outcome = OFFLINE  # of a partition without which the broker does not start
                found.setdefault((kind_of[damage], damage.what), []).append((outcome, name, damage))
    return found


@pytest.mark.extended
def test_no_file_of_the_directories_is_without_a_row(directories):
    kinds = {kind for disk in directories.values() for kind in kinds_of(disk)}
    assert kinds == {kind for kind, _ in TABLE}


@pytest.mark.extended
def test_whatever_is_damaged_is_right_or_refused_by_name(outcomes):
    problems = outcomes.get(None, [])
    assert not problems, "\n\n".join(problems)


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "what"), sorted(TABLE), ids=str)
def test_a_row_says_what_happens(kind, what, outcomes):
    phrases, seen = TABLE[kind, what], outcomes.get((kind, what), [])
    if phrases == [NOTHING]:
        assert not seen
        return
    assert seen
    told = [outcome_of(phrase) for phrase in phrases]
    allowed = set().union(*(OUTCOMES[word] for word in told))
    assert [one for one in seen if one[0] not in allowed] == []
    if POSITIONS:  # then every phrase is met
        met = {outcome for outcome, _, _ in seen}
        assert [word for word in told if not OUTCOMES[word] & met] == []
