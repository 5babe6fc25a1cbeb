"""`flights.svg`: how far everybody was at each moment, and, enlarged, which transaction held the readers at two kills."""

from collections.abc import Callable, Sequence
from pathlib import Path

from demo.crashes.history import (
    CURVES,
    FOLLOWED,
    STREAMED,
    WRITTEN,
    History,
    Kill,
    Txn,
    longest,
    stable_offsets,
)
from demo.svg import BAD, FAINT, FONT, GOOD, INK, QUIET, box, legend, line, text, ticks

WIDTH, HEIGHT = 1200, 860
LEFT, RIGHT = 90, 1170
TOP, BOTTOM = 120, 400
ZOOM_TOP, ZOOM_BOTTOM = 560, 800
ZOOM_GAP = 90
ZOOM_COUNT = 12  # Transactions before the one that holds the last stable offset, and after it.
OPEN, STABLE, SPARK = "#e09f3e", "#1d4e89", "#7b4ea3"
COLOURS = {WRITTEN: GOOD, FOLLOWED: STABLE, STREAMED: SPARK}
WIDTHS = {WRITTEN: 7, FOLLOWED: 2.5, STREAMED: 3.5}
Scale = Callable[[float], float]


def scale(low: float, high: float, first: float, last: float) -> Scale:
    """A function that maps [low, high] to [first, last]."""
    return lambda value: first + (value - low) / max(high - low, 1e-9) * (last - first)


def draw(path: Path, title: str, partition: str, history: History, transactions: Sequence[Txn]) -> None:
    """Write the picture as SVG.

    Args:
        path: where to.
        title: above it.
        partition: the name of the partition that is enlarged.
        history: what happened when.
        transactions: those of the partition, in the order of their markers.
    """
    zooms = _zooms(history)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT}>",
        "<rect width='100%' height='100%' fill='white'/>",
        text(LEFT, 42, title, 22, weight=600),
        *_progress(history),
    ]
    width = (RIGHT - LEFT - ZOOM_GAP * (len(zooms) - 1)) / max(len(zooms), 1)
    for number, kill in enumerate(zooms):
        left = LEFT + number * (width + ZOOM_GAP)
        parts += _zoom(kill, transactions, left, left + width)
    parts += [
        text(LEFT, ZOOM_TOP - 84, f"{partition}: offset over time, at two kills", 16, weight=600),
        *legend(
            LEFT,
            ZOOM_TOP - 58,
            [
                (GOOD, "committed"),
                (BAD, "aborted"),
                (OPEN, "open at the kill, so it holds the last stable offset"),
                (STABLE, "last stable offset: read-committed readers wait here"),
            ],
        ),
        "</svg>",
    ]
    path.write_text("\n".join(parts))


def _zooms(history: History) -> list[Kill]:
    """The first kills of a producer and of the broker."""
    firsts: dict[str, Kill] = {}
    for kill in history.kills:
        if kill.curve == WRITTEN:
            firsts.setdefault(kill.what, kill)
    return list(firsts.values())[:2]


def _progress(history: History) -> list[str]:
    x = scale(0, history.end_s, LEFT, RIGHT)
    highest = max(points[-1][1] for points in history.progress.values())
    y = scale(0, max(highest, 1), BOTTOM, TOP)
    parts = [
        text(LEFT, 80, "Flights, over seconds", 16, weight=600),
        *legend(RIGHT - 620, 80, [(COLOURS[name], name) for name in CURVES]),
    ]
    for tick in ticks(0, highest, 5):
        parts += [
            line(LEFT, y(tick), RIGHT, y(tick)),
            text(LEFT - 10, y(tick) + 4, f"{tick:,.0f}", 12, QUIET, anchor="end"),
        ]
    for tick in ticks(0, history.end_s, 12):
        parts.append(text(x(tick), BOTTOM + 19, f"{tick:g} s", 12, QUIET, anchor="middle"))
    for name in CURVES:
        points = " ".join(f"{x(at_s):.1f},{y(count):.1f}" for at_s, count in history.progress[name])
        parts.append(
            f"<polyline points='{points}' fill='none' stroke='{COLOURS[name]}' stroke-width='{WIDTHS[name]}' stroke-linejoin='round' stroke-linecap='round'/>"
        )
    for place, kill in enumerate(history.kills):
        reached = [count for at_s, count in history.progress[kill.curve] if at_s <= kill.at_s]
        at, level = x(kill.at_s), y(reached[-1])
        label_y = TOP + 14 + 20 * place
        is_late = at > LEFT + 0.7 * (RIGHT - LEFT)
        parts += [
            line(at, TOP, at, BOTTOM, BAD, "stroke-dasharray='4 3'"),
            f"<path d='M{at - 6:.1f},{level - 6:.1f} l12,12 m0,-12 l-12,12' stroke='{BAD}' stroke-width='3'/>",
            text(
                at - 8 if is_late else at + 8,
                label_y,
                f"{kill.what}: kill -9",
                13,
                BAD,
                anchor="end" if is_late else "start",
                weight=600,
            ),
        ]
    return parts


def _zoom(kill: Kill, transactions: Sequence[Txn], left: float, right: float) -> list[str]:
    """The transactions around a kill, as boxes from their first record to their marker, in time and in offsets."""
    holder = longest(transactions, kill.at_s)
    if holder is None:
        return []
    begin_s, end_s = min(holder.began_s, kill.at_s), max(holder.ended_s, kill.at_s)
    margin_s = max((end_s - begin_s) * 0.35, 0.15)
    begin_s, end_s = begin_s - margin_s, end_s + margin_s
    place = transactions.index(holder)
    near = transactions[max(place - ZOOM_COUNT, 0) : place + ZOOM_COUNT + 1]
    shown = [txn for txn in near if txn.ended_s >= begin_s and txn.began_s <= end_s]
    low, high = min(txn.first_offset for txn in shown), max(txn.marker_offset for txn in shown) + 1
    x, y = scale(begin_s, end_s, left, right), scale(low, high, ZOOM_BOTTOM, ZOOM_TOP)
    parts = [text(left, ZOOM_TOP - 26, f"{kill.what}: kill -9", 14, BAD, weight=600)]
    for tick in ticks(low, high, 5):
        parts += [
            line(left, y(tick), right, y(tick)),
            text(left - 8, y(tick) + 4, f"{tick:,.0f}", 12, QUIET, anchor="end"),
        ]
    for tick in _fine_ticks(begin_s, end_s):
        parts += [
            line(x(tick), ZOOM_TOP, x(tick), ZOOM_BOTTOM, FAINT),
            text(x(tick), ZOOM_BOTTOM + 18, f"{tick:.1f} s", 12, QUIET, anchor="middle"),
        ]
    for txn in shown:
        begin, end = max(x(txn.began_s), left), min(x(txn.ended_s), right)
        colour = OPEN if txn == holder else GOOD if txn.committed else BAD
        top = y(txn.marker_offset + 1)
        parts.append(
            box(begin, top, max(end - begin, 2), max(y(txn.first_offset) - top, 2), colour, "rx='1'")
        )
    parts += _stable(shown, x, y, left, right)
    parts.append(
        line(
            x(kill.at_s),
            ZOOM_TOP - 8,
            x(kill.at_s),
            ZOOM_BOTTOM,
            BAD,
            "stroke-width='1.5' stroke-dasharray='4 3'",
        )
    )
    outcome = "committed" if holder.committed else "aborted by its successor"
    middle = (max(x(holder.began_s), left) + min(x(holder.ended_s), right)) / 2
    words = f"open for {holder.ended_s - holder.began_s:.1f} s, then {outcome}"
    parts.append(text(middle, y(holder.first_offset) + 22, words, 13, INK, anchor="middle", weight=600))
    return parts


def _stable(shown: Sequence[Txn], x: Scale, y: Scale, left: float, right: float) -> list[str]:
    points: list[str] = []
    level = y(min(txn.first_offset for txn in shown))
    for at_s, offset in stable_offsets(shown):
        at = min(max(x(at_s), left), right)
        points += [f"{at:.1f},{level:.1f}", f"{at:.1f},{y(offset):.1f}"]
        level = y(offset)
    return [f"<polyline points='{' '.join(points)}' fill='none' stroke='{STABLE}' stroke-width='2.5'/>"]


def _fine_ticks(begin_s: float, end_s: float) -> list[float]:
    """Round tenths of seconds, six of them or so."""
    return [tick / 10 for tick in ticks(begin_s * 10, end_s * 10, 6)]
