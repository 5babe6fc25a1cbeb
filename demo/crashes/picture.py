"""`flights.svg`: how far everybody was at each moment, and, enlarged, which transaction held the readers at two kills."""

from collections.abc import Callable, Sequence
from itertools import pairwise
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
from demo.svg import BAD, FAINT, FONT, GOOD, INK, QUIET, box, cross, legend, line, text, ticks, width_of

WIDTH, HEIGHT = 1000, 1000
LEFT, RIGHT = 90, 970
TOP, BOTTOM = 200, 480
KILL_PITCH = 20  # of the labels of kills, which are in rows above the curves
ZOOM_TOP, ZOOM_BOTTOM = 660, 950
ZOOM_GAP = 100
ZOOM_COUNT = 21  # Transactions before the open one, and after it. One of them is aborted: each twentieth is.
BOX_WIDTH_MIN = (
    7  # Most transactions take a few milliseconds: their boxes are drawn wider, up to their marker.
)
SMALL, LARGE = 14, 17
OPEN, STABLE, SPARK = "#e09f3e", "#1d4e89", "#7b4ea3"
COLOURS = {WRITTEN: GOOD, FOLLOWED: STABLE, STREAMED: SPARK}
WIDTHS = {WRITTEN: 7, FOLLOWED: 2.5, STREAMED: 3}
LABELS = {STREAMED: f"{STREAMED}, a step for each micro-batch"}
DASH = "stroke-width='1.5' stroke-dasharray='4 3'"
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
        text(LEFT, 44, title, 24, weight=600),
        *_progress(history),
        text(LEFT, 552, "Offsets over time, around two kills", LARGE, weight=600),
        text(LEFT, 575, partition, SMALL, QUIET),
        *_zoom_legend(602),
    ]
    width = (RIGHT - LEFT - ZOOM_GAP * (len(zooms) - 1)) / max(len(zooms), 1)
    for number, kill in enumerate(zooms):
        left = LEFT + number * (width + ZOOM_GAP)
        parts += _zoom(kill, transactions, left, left + width)
    parts.append("</svg>")
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
        text(LEFT, 84, "Flights over time", LARGE, weight=600),
        *legend(LEFT, 112, [(COLOURS[name], LABELS.get(name, name)) for name in CURVES], SMALL),
    ]
    for tick in ticks(0, highest, 5):
        parts += [
            line(LEFT, y(tick), RIGHT, y(tick)),
            text(LEFT - 10, y(tick) + 5, f"{tick:,.0f}", SMALL, QUIET, anchor="end"),
        ]
    for tick in ticks(0, history.end_s, 10):
        parts.append(text(x(tick), BOTTOM + 22, f"{tick:g} s", SMALL, QUIET, anchor="middle"))
    for name in CURVES:
        points = steps(history.progress[name]) if name == STREAMED else history.progress[name]
        drawn = " ".join(f"{x(at_s):.1f},{y(count):.1f}" for at_s, count in points)
        parts.append(
            f"<polyline points='{drawn}' fill='none' stroke='{COLOURS[name]}' stroke-width='{WIDTHS[name]}' stroke-linejoin='round' stroke-linecap='round'/>"
        )
    parts += [
        f"<circle cx='{x(at_s):.1f}' cy='{y(count):.1f}' r='4.5' fill='{SPARK}'/>"
        for (_, before), (at_s, count) in pairwise(history.progress[STREAMED])
        if count > before
    ]
    for kill, row, is_left in _kill_labels(history.kills, x):
        reached = [count for at_s, count in history.progress[kill.curve] if at_s <= kill.at_s]
        at, label_y = x(kill.at_s), TOP - 12 - KILL_PITCH * (len(history.kills) - 1 - row)
        anchor, shift = ("end", -8) if is_left else ("start", 8)
        parts += [
            line(at, label_y - 12, at, BOTTOM, INK, DASH),
            cross(at, y(reached[-1]), 6, INK),
            text(at + shift, label_y, _label_of(kill), SMALL, INK, anchor=anchor, weight=600),
        ]
    return parts


def steps(points: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the corners of a curve that rises in steps, without the time before its start.

    Args:
        points: (seconds, count) at each change.
    """
    first = max((place for place, (_, count) in enumerate(points) if count == 0), default=0)
    corners = [points[first]]
    for (_, before), (at_s, count) in pairwise(points[first:]):
        corners += [(at_s, before), (at_s, count)]
    return corners


def _label_of(kill: Kill) -> str:
    return f"{kill.what}: kill -9"


def _kill_labels(kills: Sequence[Kill], x: Scale) -> list[tuple[Kill, int, bool]]:
    """Return the place of each kill's label: its row, from the top, and whether it is to the left of its line.

    A line begins at its label, so it crosses no label above. Labels to the left of their lines are above all others.
    """
    to_left: list[Kill] = []
    to_right: list[Kill] = []
    limit: float = RIGHT
    for kill in sorted(kills, reverse=True):
        if x(kill.at_s) + 8 + width_of(_label_of(kill), SMALL) * 1.1 > limit:
            to_left.append(kill)
            limit = x(kill.at_s)
        else:
            to_right.append(kill)
    rows = [*to_left, *reversed(to_right)]
    return [(kill, row, row < len(to_left)) for row, kill in enumerate(rows)]


def _zoom_legend(y: float) -> list[str]:
    aborted = LEFT + 40 + width_of("committed", SMALL)
    return [
        *legend(LEFT, y, [(GOOD, "committed")], SMALL),
        cross(aborted + 7, y - 5, 5, BAD),
        text(aborted + 20, y, "aborted", SMALL),
        *legend(aborted + 40 + width_of("aborted", SMALL), y, [(OPEN, "open at the kill")], SMALL),
        *legend(LEFT + 412, y, [(STABLE, "last stable offset: read-committed readers wait here")], SMALL),
    ]


def _zoom(kill: Kill, transactions: Sequence[Txn], left: float, right: float) -> list[str]:
    """The transactions around a kill, as boxes from their first record to their marker, in time and in offsets."""
    holder = longest(transactions, kill.at_s)
    if holder is None:
        return []
    begin_s, end_s, shown = _near(holder, kill.at_s, transactions)
    low, high = min(txn.first_offset for txn in shown), max(txn.marker_offset for txn in shown) + 1
    x, y = scale(begin_s, end_s, left, right), scale(low, high, ZOOM_BOTTOM, ZOOM_TOP)
    parts = [text(left, ZOOM_TOP - 24, _label_of(kill), SMALL + 1, weight=600)]
    for tick in ticks(low, high, 5):
        parts += [
            line(left, y(tick), right, y(tick)),
            text(left - 8, y(tick) + 5, f"{tick:,.0f}", SMALL, QUIET, anchor="end"),
        ]
    for tick in _fine_ticks(begin_s, end_s):
        parts += [
            line(x(tick), ZOOM_TOP, x(tick), ZOOM_BOTTOM, FAINT),
            text(x(tick), ZOOM_BOTTOM + 22, f"{tick:.1f} s", SMALL, QUIET, anchor="middle"),
        ]
    for txn in shown:
        end = min(x(txn.ended_s), right)
        begin = min(max(x(txn.began_s), left), end - BOX_WIDTH_MIN)
        colour = OPEN if txn == holder else GOOD if txn.committed else BAD
        top = y(txn.marker_offset + 1)
        parts.append(box(begin, top, end - begin, max(y(txn.first_offset) - top, 2), colour, "rx='1'"))
    parts += _stable(shown, x, y, left, right)
    parts.append(line(x(kill.at_s), ZOOM_TOP - 12, x(kill.at_s), ZOOM_BOTTOM, INK, DASH))
    # Above all else: most transactions are a few pixels wide.
    for txn in shown:
        if not txn.committed:
            parts.append(
                cross(min(x(txn.ended_s), right), y((txn.first_offset + txn.marker_offset + 1) / 2), 5, BAD)
            )
    return parts + _outcome(holder, kill.at_s, x, y, right)


def _near(holder: Txn, kill_s: float, transactions: Sequence[Txn]) -> tuple[float, float, list[Txn]]:
    """Return the begin and the end of the time that is enlarged, and the transactions in it. The nearest aborted
    transactions before and after the open one are among them, if they are near.
    """
    begin_s, end_s = min(holder.began_s, kill_s), max(holder.ended_s, kill_s)
    length_s = max(end_s - begin_s, 0.4)
    place = transactions.index(holder)
    before = transactions[max(place - ZOOM_COUNT, 0) : place]
    after = transactions[place + 1 : place + 1 + ZOOM_COUNT]
    aborted_before = [txn.began_s for txn in before if not txn.committed]
    aborted_after = [txn.ended_s for txn in after if not txn.committed]
    margin_s, margin_max_s = length_s * 0.35, length_s
    first_s = (
        max(min(begin_s - margin_s, *aborted_before[-1:]), begin_s - margin_max_s)
        if aborted_before
        else begin_s - margin_s
    )
    last_s = (
        min(max(end_s + margin_s, *aborted_after[:1]), end_s + margin_max_s)
        if aborted_after
        else end_s + margin_s
    )
    shown = [txn for txn in (*before, holder, *after) if txn.ended_s >= first_s and txn.began_s <= last_s]
    return first_s, last_s, shown


def _outcome(holder: Txn, kill_s: float, x: Scale, y: Scale, right: float) -> list[str]:
    """Return what became of the open transaction, in two lines below it."""
    outcome = "then committed" if holder.committed else "then aborted by its successor"
    words = f"open for {holder.ended_s - holder.began_s:.1f} s,", outcome
    widest = max(width_of(each, SMALL) * 1.1 for each in words)
    left = min(max(x(holder.began_s), x(kill_s)) + 8, right - widest)
    top = min(y(holder.first_offset) + 22, ZOOM_BOTTOM - 26)
    return [text(left, top + 19 * row, each, SMALL, weight=600) for row, each in enumerate(words)]


def _stable(shown: Sequence[Txn], x: Scale, y: Scale, left: float, right: float) -> list[str]:
    points: list[str] = []
    level = y(min(txn.first_offset for txn in shown))
    for at_s, offset in stable_offsets(shown):
        at = min(max(x(at_s), left), right)
        points += [f"{at:.1f},{level:.1f}", f"{at:.1f},{y(offset):.1f}"]
        level = y(offset)
    return [f"<polyline points='{' '.join(points)}' fill='none' stroke='{STABLE}' stroke-width='1.8'/>"]


def _fine_ticks(begin_s: float, end_s: float) -> list[float]:
    """Round tenths of seconds, six of them or so."""
    return [tick / 10 for tick in ticks(begin_s * 10, end_s * 10, 6)]
