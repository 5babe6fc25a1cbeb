"""Parts that the pictures of all scenes share: colours, shapes, round numbers on axes, a legend."""

from collections.abc import Iterable
from html import escape

GOOD, BAD, INK, FAINT, QUIET = "#2a9d6f", "#d1495b", "#222", "#e6e6e6", "#6b7280"
CHARACTER_WIDTH = 0.56  # of a letter, in sizes of the font: 7.3 of text of size 13
FONT = "font-family='system-ui, Helvetica, Arial, sans-serif'"


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers in [low, high], `count` of them at most or a few more."""
    span = max(high - low, 1)
    step = 10 ** len(str(int(span / count))) / 10
    while span / step > count:
        step *= 2 if str(step)[0] in "15" else 2.5
    first = -(-low // step) * step
    return [first + i * step for i in range(int((high - first) // step) + 1)]


def legend(x: float, y: float, entries: Iterable[tuple[str, str]], size: int = 13) -> list[str]:
    """Coloured squares with what they stand for, in a row."""
    parts = []
    for colour, label in entries:
        parts.append(f"<rect x='{x:.1f}' y='{y - 10}' width='14' height='10' rx='2' fill='{colour}'/>")
        parts.append(f"<text x='{x + 20:.1f}' y='{y}' font-size='{size}' fill='{INK}'>{escape(label)}</text>")
        x += 40 + CHARACTER_WIDTH * size * len(label)
    return parts


def width_of(words: str, size: int) -> float:
    """Return the width of a line of text, at most: fonts differ."""
    return CHARACTER_WIDTH * size * len(words)


def cross(x: float, y: float, radius: float, colour: str) -> str:
    """A cross with a white edge, which is visible on every colour."""
    arms = f"M{x - radius:.1f},{y - radius:.1f} l{2 * radius},{2 * radius} m0,{-2 * radius} l{-2 * radius},{2 * radius}"
    return (
        f"<path d='{arms}' stroke='white' stroke-width='6' fill='none'/>"
        f"<path d='{arms}' stroke='{colour}' stroke-width='3' fill='none'/>"
    )


def text(
    x: float,
    y: float,
    words: str,
    size: int = 13,
    colour: str = INK,
    *,
    anchor: str = "start",
    weight: int = 400,
    outline: str = "white",
) -> str:
    """A line of text. Its outline, in the colour of the background, keeps it legible where it crosses a line."""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' font-weight='{weight}' fill='{colour}' "
        f"text-anchor='{anchor}' paint-order='stroke' stroke='{outline}' stroke-width='4' "
        f"stroke-linejoin='round'>{escape(words)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, more: str = "") -> str:
    """A straight line. `more` has further attributes."""
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' {more}/>"


def box(x: float, y: float, width: float, height: float, colour: str, more: str = "") -> str:
    """A filled rectangle. `more` has further attributes."""
    return f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='{colour}' {more}/>"


def badge(x: float, y: float, width: float, height: float, words: str, colour: str) -> str:
    """A box with white text in its middle."""
    return box(x, y, width, height, colour, "rx='3'") + (
        f"<text x='{x + width / 2:.1f}' y='{y + height / 2 + 4.5:.1f}' font-size='12' font-weight='600' fill='white' "
        f"text-anchor='middle' xml:space='preserve'>{escape(words)}</text>"
    )
