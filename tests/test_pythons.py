"""`python -m tests.pythons`: its exit code, with interpreters that are not started."""

import pytest

from tests import pythons


@pytest.mark.parametrize(
    ("found", "green", "code"),
    [
        ({11: "python3.11", 12: "python3.12"}, {11, 12}, 0),
        ({11: "python3.11", 12: "python3.12"}, {12}, 1),
        ({}, set(), 1),
    ],
    ids=["all pass", "one fails", "none is found"],
)
def test_the_exit_code_says_whether_the_tests_passed(monkeypatch, capsys, found, green, code):
    monkeypatch.setattr(pythons, "interpreters", lambda: found)
    monkeypatch.setattr(pythons, "is_green", lambda minor, _interpreter: minor in green)
    with pytest.raises(SystemExit) as ended:
        pythons.main()
    assert int(ended.value.code) == code
    assert "Python 3.14: not found" in capsys.readouterr().out
