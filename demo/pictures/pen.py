"""Two palettes, and the parts of the pictures in the colours of one of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from demo.svg import FONT, box, line, text

WIDTH = 800  # A page shows the pictures at this width or less, so their text is large.


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a picture.

    Attributes:
        name: light or dark.
        paper: the background.
        ink: text.
        quiet: text of less weight, and thin lines.
        faint: surfaces that say that something is not there.
        readable: what readers get.
        waiting: committed records that readers do not get yet.
        open: an open transaction.
        aborted: an aborted transaction.
        edge: the line at which readers stop.
        transactions: one colour for each transaction of a small picture.
    """

    name: str
    paper: str
    ink: str
    quiet: str
    faint: str
    readable: str
    waiting: str
    open: str
    aborted: str
    edge: str
    transactions: Sequence[str]


PALETTES = (
    Palette(
        name="light",
        paper="#ffffff",
        ink="#1f2328",
        quiet="#59636e",
        faint="#e4e8ec",
        readable="#2a9d6f",
        waiting="#8fcfb3",
        open="#e9a23b",
        aborted="#d1495b",
        edge="#1d4e89",
        transactions=("#2f6fb5", "#b8680f", "#23805b", "#7b4ea3"),
    ),
    Palette(
        name="dark",
        paper="#0d1117",
        ink="#f0f6fc",
        quiet="#9198a1",
        faint="#262c36",
        readable="#2a9d6f",
        waiting="#1d5a45",
        open="#d29232",
        aborted="#e0606f",
        edge="#6cb0ff",
        transactions=("#3f7fc9", "#b8680f", "#23805b", "#8d62b5"),
    ),
)


@dataclass(frozen=True, slots=True)
class Pen:
    """Draws in the colours of a palette."""

    palette: Palette

    def words(
        self,
        x: float,
        y: float,
        words: str,
        size: int = 18,
        colour: str = "",
        *,
        anchor: str = "start",
        weight: int = 400,
    ) -> str:
        """A line of text, in ink if no colour is given."""
        colours = colour or self.palette.ink, self.palette.paper
        return text(x, y, words, size, colours[0], anchor=anchor, weight=weight, outline=colours[1])

    def cell(self, x: float, y: float, width: float, height: float, label: str, colour: str) -> str:
        """A record: a filled box with white text."""
        return box(x, y, width, height, colour, "rx='4'") + text(
            x + width / 2, y + height / 2 + 6, label, 17, "white", anchor="middle", weight=600, outline=colour
        )

    def outlined(self, x: float, y: float, width: float, height: float, label: str, colour: str) -> str:
        """A marker, or a record that a reader does not get: an outline with text in ink."""
        outline = f"rx='4' stroke='{colour}' stroke-width='2' stroke-dasharray='5 3'"
        return box(x, y, width, height, self.palette.paper, outline) + self.words(
            x + width / 2, y + height / 2 + 6, label, 17, anchor="middle", weight=600
        )

    def rule(self, x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
        """A straight line of 2.5 units."""
        return line(x1, y1, x2, y2, colour, f"stroke-width='2.5' {more}")

    def picture(self, height: int, description: str, parts: Iterable[str]) -> str:
        """The SVG with all its parts. Programs that read a page aloud say the description."""
        return "\n".join(
            [
                f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img' {FONT}>",
                f"<title>{description}</title>",
                box(0, 0, WIDTH, height, self.palette.paper, "rx='8'"),
                *parts,
                "</svg>\n",
            ]
        )
