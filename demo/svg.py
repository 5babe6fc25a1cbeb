"""What the pictures of both scenes have in common: colours, round numbers on axes, a legend."""

from collections.abc import Iterable
from html import escape

GOOD, BAD, INK, FAINT = "#2a9d6f", "#d1495b", "#222", "#e6e6e6"
FONT = "font-family='system-ui, Helvetica, Arial, sans-serif'"


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers in [low, high], `count` of them at most or a few more."""
    span = max(high - low, 1)
    step = 10 ** len(str(int(span / count))) / 10
    while span / step > count:
        step *= 2 if str(step)[0] in "15" else 2.5
    first = -(-low // step) * step
    return [first + i * step for i in range(int((high - first) // step) + 1)]


def legend(x: float, y: float, entries: Iterable[tuple[str, str]]) -> list[str]:
    """Coloured squares with what they stand for, in a row."""
    parts = []
    for colour, label in entries:
        parts.append(f"<rect x='{x}' y='{y - 10}' width='14' height='10' rx='2' fill='{colour}'/>")
        parts.append(f"<text x='{x + 20}' y='{y}' font-size='13' fill='{INK}'>{escape(label)}</text>")
        x += 40 + 7.2 * len(label)
    return parts
