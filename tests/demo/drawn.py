"""What a picture of the demo says, and where: the boxes of its texts, by the widths of common letters."""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

LETTER = 0.5  # of a common font, in sizes
BOLD = 1.08


@dataclass(frozen=True, slots=True)
class Label:
    """A text that is not turned, and the box that it fills."""

    words: str
    size: float
    left: float
    right: float
    top: float
    bottom: float

    def overlaps(self, other: "Label") -> bool:
        return (
            min(self.right, other.right) - max(self.left, other.left) > 1
            and min(self.bottom, other.bottom) - max(self.top, other.top) > 1
        )


def labels_of(path: Path) -> list[Label]:
    found = []
    for element in ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text"):
        words, size = element.text or "", float(element.get("font-size", 0))
        if not words.strip() or element.get("transform"):
            continue
        width = LETTER * size * len(words) * (BOLD if element.get("font-weight") == "600" else 1)
        at, y = float(element.get("x", 0)), float(element.get("y", 0))
        left = at - {"middle": width / 2, "end": width}.get(element.get("text-anchor", "start"), 0)
        found.append(Label(words, size, left, left + width, y - 0.75 * size, y + 0.2 * size))
    return found


def lines_of(path: Path, colour: str) -> list[tuple[float, float, float]]:
    """The vertical lines of a colour: where, from and to."""
    found = []
    for element in ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}line"):
        x1, y1, x2, y2 = (float(element.get(name, 0)) for name in ("x1", "y1", "x2", "y2"))
        if x1 == x2 and element.get("stroke") == colour:
            found.append((x1, min(y1, y2), max(y1, y2)))
    return found


def check_legible(path: Path, *, width: float) -> list[Label]:
    """Assert that no text crosses another or leaves the picture, and that each can be read at 820 px."""
    labels = labels_of(path)
    crossing = [(one.words, other.words) for one, other in combinations(labels, 2) if one.overlaps(other)]
    assert not crossing
    assert not [label.words for label in labels if label.left < 0 or label.right > width]
    assert not [label.words for label in labels if label.size * 820 / width < 9.5]
    return labels
