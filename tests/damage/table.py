"""The table of docs/reference/damage.md, "Lost and damaged files", and the kinds of files that it has a row for."""

import re

from tests import documented
from tests.damage.directories import DATA
from tests.damage.walk import CUT, FLIPPED, GONE, MISSING, NO_START, OFFLINE, REBUILT, REFUSED, RIGHT, TORN

COLUMNS = (MISSING, TORN, FLIPPED)
# A cell is one or more phrases, with a semicolon between them. Each begins with one of these words.
OUTCOMES = {
    "no effect": {RIGHT},
    "commits unknown": {RIGHT, REBUILT},
    "rebuilt": {REBUILT, RIGHT},
    "reads refused": {REFUSED},
    "partition refused": {OFFLINE},
    "broker refused": {NO_START},
    "cut": {CUT},
    "lost as in a crash": {GONE},
}
NOTHING = "-"
COORDINATORS = "__transaction_state*-0/, __consumer_offsets-0/"
COORDINATOR_LOG = "<base>.log of a coordinator"


def read_rows(heading):
    """The rows of the tables in a section of the documents: lists of cells without backticks."""
    text = documented.section(heading)
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if set(row[0].strip()) - {"-"}]


def read_table():
    """By kind of file and column: the phrases of the cell."""
    rows = [row for row in read_rows("Lost and damaged files") if len(row) == 4]
    assert rows[0][1:] == list(COLUMNS)
    return {
        (row[0].replace("`", "").removesuffix(" and its files"), what): [
            phrase.strip() for phrase in cell.split(";")
        ]
        for row in rows[1:]
        for what, cell in zip(COLUMNS, row[1:], strict=True)
    }


def outcome_of(phrase):
    """The beginning of a phrase that stands for outcomes."""
    found = [word for word in OUTCOMES if phrase.startswith(word)]
    assert len(found) == 1, f"{phrase!r} begins with none of {sorted(OUTCOMES)}"
    return found[0]


def names_in(cells):
    """The names in backticks."""
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def kinds_of(disk):
    """By kind: files and directories of a data directory."""
    found = {}
    for path in disk.files():
        found.setdefault(kind_of(disk, path), []).append(path)
    for name in disk.list_dir(DATA):
        if disk.is_dir(DATA / name):
            found.setdefault(kind_of_directory(name), []).append(DATA / name)
    return found


def kind_of_directory(name):
    """The row of a directory."""
    for suffix in ("delete", "stray"):
        if name.endswith(f"-{suffix}"):
            return f"<topic>-<partition>.<topic id>-{suffix}/"
    return COORDINATORS if name.startswith("__") else "<topic>-<partition>/"


def kind_of(disk, path):
    """The row of a file."""
    if path.parent == DATA:
        return path.name
    home = kind_of_directory(path.parent.name)
    if home.endswith(("-delete/", "-stray/")):
        return home  # its files are as much read as itself
    stem, _, suffix = path.name.partition(".")
    for last in (".deleted", ".cleaned", ".swap", ".tmp"):
        if path.name.endswith(last):
            return f"*{last}"
    if not stem.isdigit():
        return path.name
    if suffix.startswith("cut"):
        return "<base>.cut, <base>.cut.1 and so on"
    if suffix in ("snapshot", "producers"):
        return f"<offset>.{suffix}"
    if suffix != "log":
        return f"<base>.{suffix}"
    if home == COORDINATORS:
        return COORDINATOR_LOG
    bases = sorted(other.stem for other in disk.files(path.parent) if other.suffix == ".log")
    if stem == bases[-1]:
        return "<base>.log of the last segment"
    return f"<base>.log of {'the first' if stem == bases[0] else 'a middle'} segment"
