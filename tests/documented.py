"""The code blocks of the documents of the client, for the tests that run them.

A test takes the text of a block from the document with `take`, which notes that this block is run.
`tests/client/test_documented.py` fails if a block is not taken.
"""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("admin.md", "client.md", "pytest.md")
# Blocks between fences, and indented ones behind an empty line. A paragraph of a list is indented less.
BLOCK = re.compile(r"^```\w*\n((?:.*\n)*?)^```$|(?<=\n\n)((?:    .*\n|\n)*    .*\n)", re.M)
taken = set()


def blocks(page):
    """The text of each block, without fences and indentation."""
    text = (DOCS / page).read_text()
    return [
        fenced or re.sub("^    ", "", indented, flags=re.M)
        for fenced, indented in (match.groups() for match in BLOCK.finditer(text))
    ]


def take(page, *words):
    """Take the blocks of a page that have all these words, in their order. The caller runs them."""
    found = [block for block in blocks(page) if all(word in block for word in words)]
    taken.update((page, block) for block in found)
    return found
