"""The table of protocol rules: for each a mutant that breaks it, and the test that has to fail then.

The rows stand in `rules/*.txt`, by room. Each is a block of lines:

    A committed reader sees nothing at or behind the last stable offset.
    @ log/partition.py
    - the text of the source, which stands there once
    + the text in its place
    = the test that catches it

A line that begins with `# ` names the area of the rows that follow. A text may have several lines.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.mutants.runs import PACKAGE, SOURCES

TABLES = Path(__file__).parent / "rules"


@dataclass(frozen=True)
class Rule:
    """A row of the table.

    Attributes:
        area: the heading above it.
        says: the rule, in a sentence.
        path: of the source file, in the package.
        old: what stands there once.
        new: the mutant: what stands there in its place.
        test: node id of the test that catches it.
    """

    area: str
    says: str
    path: str
    old: str
    new: str
    test: str

    def mutated(self) -> str:
        """The text of the source file with the mutant.

        Raises:
            ValueError: the table is behind the sources.
        """
        text = (SOURCES / PACKAGE / self.path).read_text()
        count = text.count(self.old)
        if count == 0:
            raise ValueError(
                f"the text of the rule {self.says!r} is gone from {self.path}: write into {TABLES.name}/ the text that "
                f"keeps this rule now; it was {self.old!r}"
            )
        if count > 1:
            raise ValueError(
                f"the text of the rule {self.says!r} stands {count} times in {self.path}: add to it what makes it the "
                f"only one; it is {self.old!r}"
            )
        return text.replace(self.old, self.new)


def read(content: str) -> list[Rule]:
    """The rows of one file."""
    rules, area = [], ""
    for block in content.split("\n\n"):
        lines = block.strip("\n").split("\n")
        if lines[0].startswith("# "):
            area = lines[0].removeprefix("# ")
            continue

        def text(sign, lines=lines):
            return "\n".join(line[2:] for line in lines if line.startswith(f"{sign} "))

        rules.append(Rule(area, lines[0], text("@"), text("-"), text("+"), text("=")))
    return rules


RULES = [rule for path in sorted(TABLES.glob("*.txt")) for rule in read(path.read_text())]
AREAS = tuple(dict.fromkeys(rule.area for rule in RULES))
