"""The generated tables of the documents are what `python -m tests.reference_tables` writes."""

import re
from types import SimpleNamespace

import pytest

from tests.reference_tables import PAGES, all_tables, names_in, with_tables
from tests.reference_tables import __main__ as program

TABLES = all_tables()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_the_codes(page):
    text = page.read_text()
    assert text == with_tables(text, TABLES), "run `python -m tests.reference_tables`"
    assert (
        len(re.findall("<!-- generated: ", text))
        == len(re.findall("<!-- end -->", text))
        == len(names_in(text))
    )


def test_each_table_stands_in_one_page():
    found = [name for page in PAGES for name in names_in(page.read_text())]
    assert sorted(found) == sorted(TABLES)


def test_a_table_is_written_between_its_markers(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("a\n\n<!-- generated: codes -->\nold\n<!-- end -->\n\nb\n")
    monkeypatch.setattr(program, "PAGES", [page])
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setattr(program, "all_tables", lambda: {"codes": "| new |\n"})
    assert program.main(["--check"]) == 1
    assert "old" in page.read_text()
    assert program.main([]) == 0
    assert page.read_text() == "a\n\n<!-- generated: codes -->\n| new |\n<!-- end -->\n\nb\n"
    assert program.main(["--check"]) == 0
    assert capsys.readouterr().out == "page.md\npage.md\n"


def test_a_wrong_argument_is_refused(capsys):
    assert program.main(["--fix"]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_table_that_is_not_written_is_an_error():
    with pytest.raises(KeyError):
        with_tables("<!-- generated: nothing -->\n<!-- end -->\n", {})


def test_no_two_modules_write_one_table(monkeypatch):
    settings = SimpleNamespace(name="settings")
    monkeypatch.setattr("pkgutil.iter_modules", lambda path: [settings, settings])
    with pytest.raises(ValueError, match="two modules write a table settings"):
        all_tables()
