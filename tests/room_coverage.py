"""Branch coverage of each room, of the run before: `make coverage` runs the tests of `make test`, and then this.

python -m tests.room_coverage [--misses ROOM]

The coverage of a room is that of coverage.py: the part of its statements and branches that were executed. The exit code is
1 if a room that decides has less than PURE_MIN percent. `--misses` prints the lines and branches of a room that no test
has executed.
"""

import argparse
import json
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[1]
PURE_MIN = 97
PURE_CONTRACTS = ("Rooms that decide know no outside", "The client's core knows no outside")


def pure_rooms(pyproject):
    """The rooms that decide, as the import contracts name them: their paths below src."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    return {
        name.replace(".", "/")
        for contract in contracts
        if contract["name"] in PURE_CONTRACTS
        for name in contract["source_modules"]
    }


def room_of(path, pure):
    """The room of a file below src: the one that decides and has it, or the package below stablelog."""
    module = path.removeprefix("src/").removesuffix(".py")
    for room in pure:
        if module == room or module.startswith(f"{room}/"):
            return room
    return "/".join(module.split("/")[:2])


def percents(files, pure):
    """The percentage of each room that was executed.

    Args:
        files: path -> the summary of coverage.py's JSON report.
        pure: the rooms that decide.
    """
    all_, done = Counter(), Counter()
    for path, summary in files.items():
        room = room_of(path, pure)
        all_[room] += summary["num_statements"] + summary["num_branches"]
        done[room] += summary["covered_lines"] + summary["covered_branches"]
    return {room: 100 * done[room] / count for room, count in sorted(all_.items()) if count}


def lines(found, pure):
    """The table: the rooms with the least coverage first."""
    for room, percent in sorted(found.items(), key=lambda each: each[1]):
        short = "  too little" if is_short(room, percent, pure) else ""
        yield f"{percent:6.2f} %  {room}{' (decides)' if room in pure else ''}{short}"


def is_short(room, percent, pure):
    return room in pure and percent < PURE_MIN


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--misses", metavar="ROOM", help="print what was not executed of this room")
    options = parser.parse_args()
    measured = coverage.Coverage(data_file=ROOT / ".coverage", config_file=False)
    measured.load()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        measured.json_report(outfile=str(report))
        files = json.loads(report.read_text())["files"]
    pure = pure_rooms((ROOT / "pyproject.toml").read_text())
    if options.misses:
        for path, one in sorted(files.items()):
            if room_of(path, pure) == options.misses and (one["missing_lines"] or one["missing_branches"]):
                print(path, "lines", one["missing_lines"], "branches", one["missing_branches"])
        return 0
    found = percents({path: one["summary"] for path, one in files.items()}, pure)
    print(*lines(found, pure), sep="\n")
    return any(is_short(room, percent, pure) for room, percent in found.items())


if __name__ == "__main__":
    sys.exit(main())
