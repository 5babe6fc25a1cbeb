"""The documents, for the tests that hold them to the code: pages by name, sections by heading, blocks of code by their words.

A test finds a text by its name or its heading, and does not know in which folder the page is. A test takes the text of a
block of code with `take`, which notes that this block is run. `tests/client/test_documented.py` fails if a block is not
taken.
"""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (
    "admin.md",
    "back-up.md",
    "client.md",
    "deploy.md",
    "first-log.md",
    "from-kafka.md",
    "python-service.md",
    "secure.md",
    "size.md",
    "tests.md",
    "tiers.md",
    "transactions.md",
    "troubleshoot.md",
)
# Blocks between fences, and indented ones behind an empty line. A paragraph of a list is indented less.
BLOCK = re.compile(r"^```\w*\n((?:.*\n)*?)^```$|(?<=\n\n)((?:    .*\n|\n)*    .*\n)", re.M)
taken = set()


def page(name):
    """The text of the only page of this name, in whatever folder it is."""
    (found,) = DOCS.rglob(name)
    return found.read_text()


def section(heading):
    """The text below a heading of the second level, up to the next one. No two pages may have the heading."""
    texts = [path.read_text() for path in sorted(DOCS.rglob("*.md"))]
    (found,) = (text for text in texts if f"\n## {heading}\n" in text)
    return found.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks(name):
    """The text of each block of a page, without fences and indentation."""
    text = page(name)
    return [
        fenced or re.sub("^    ", "", indented, flags=re.M)
        for fenced, indented in (match.groups() for match in BLOCK.finditer(text))
    ]


def take(name, *words):
    """Take the blocks of a page that have all these words, in their order. The caller runs them."""
    found = [block for block in blocks(name) if all(word in block for word in words)]
    taken.update((name, block) for block in found)
    return found
