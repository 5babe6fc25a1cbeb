"""The tables of the documents that are generated from the code.

A generated table stands in a page between the lines `<!-- generated: NAME -->` and `<!-- end -->`. A module of this
package that writes tables has a function `tables()`, which returns the Markdown of each table by its name.
`python -m tests.reference_tables` writes the tables into all pages, and `--check` only compares.
"""

import pkgutil
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
GENERATED = re.compile(r"^(<!-- generated: ([\w-]+) -->\n)(.*?)^(<!-- end -->)$", re.M | re.S)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown. An empty cell is one space wide."""
    lines = [
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(str(cell) for cell in row)} |".replace("|  |", "| |") for row in rows),
    ]
    return "".join(f"{' '.join(line.split())}\n" for line in lines)


def all_tables() -> dict[str, str]:
    """The tables of all modules of this package, by their names."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(__path__):
        tables = getattr(import_module(f"{__name__}.{module.name}"), "tables", None)
        if tables is None:
            continue
        for name, text in tables().items():
            if name in found:
                raise ValueError(f"two modules write a table {name}")
            found[name] = text
    return found


def names_in(text: str) -> list[str]:
    """The names of the tables that a page has, in their order."""
    return [match[2] for match in GENERATED.finditer(text)]


def with_tables(text: str, tables: dict[str, str]) -> str:
    """The text of a page with the tables between its markers. KeyError if a page names a table that is not written."""
    return GENERATED.sub(lambda match: match[1] + tables[match[2]] + match[4], text)
