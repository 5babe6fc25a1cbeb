"""The table of branch coverage for each room."""

from tests.room_coverage import ROOT, lines, percents, pure_rooms, room_of

PURE = {"stablelog/log", "stablelog/client/core"}


def summary(statements, branches, covered_lines, covered_branches):
    return {
        "num_statements": statements,
        "num_branches": branches,
        "covered_lines": covered_lines,
        "covered_branches": covered_branches,
    }


def test_a_file_belongs_to_the_room_that_decides_or_to_its_package():
    assert room_of("src/stablelog/log/segments/search.py", PURE) == "stablelog/log"
    assert room_of("src/stablelog/client/core/transaction_reader.py", PURE) == "stablelog/client/core"
    assert room_of("src/stablelog/client/blocking/reader.py", PURE) == "stablelog/client"
    assert room_of("src/stablelog/logs/one.py", PURE) == "stablelog/logs"


def test_statements_and_branches_count_and_rooms_with_the_least_come_first():
    files = {
        "src/stablelog/log/a.py": summary(60, 20, 60, 10),
        "src/stablelog/log/b.py": summary(20, 0, 20, 0),
        "src/stablelog/cli/main.py": summary(10, 0, 5, 0),
        "src/stablelog/client/core/transaction_reader.py": summary(100, 0, 97, 0),
        "src/stablelog/log/__init__.py": summary(0, 0, 0, 0),
    }
    assert list(lines(percents(files, PURE), PURE)) == [
        " 50.00 %  stablelog/cli",
        " 90.00 %  stablelog/log (decides)  too little",
        " 97.00 %  stablelog/client/core (decides)",
    ]


def test_the_rooms_that_decide_are_those_of_the_import_contracts():
    pure = pure_rooms((ROOT / "pyproject.toml").read_text())
    assert {"stablelog/log", "stablelog/client/core"} <= pure
    assert all((ROOT / "src" / f"{room}.py").exists() or (ROOT / "src" / room).is_dir() for room in pure)
