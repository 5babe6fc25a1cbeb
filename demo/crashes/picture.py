"""One partition in a picture: its transactions over offsets, and its watermarks over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from demo.crashes.follow import Sample
from demo.svg import BAD, FAINT, FONT, GOOD, INK, legend, ticks
from stablelog.batch.header import headers_in
from stablelog.batch.markers import MarkerType, read_marker

WIDTH, MARGIN_LEFT, MARGIN_RIGHT = 1200, 90, 30
HIGH, STABLE = "#8d99ae", "#1d4e89"


@dataclass(frozen=True, slots=True)
class Txn:
    """A transaction in the partition; its end is the marker's offset."""

    first_offset: int
    marker_offset: int
    committed: bool


def read_transactions(partition_directory: Path) -> list[Txn]:
    """The ended transactions of a partition, from its files."""
    found: list[Txn] = []
    first_offsets: dict[int, int] = {}
    for path in sorted(partition_directory.glob("*.log")):
        content = path.read_bytes()
        for position, header in headers_in(content):
            if not header.is_control:
                if header.is_transactional:
                    first_offsets.setdefault(header.producer_id, header.base_offset)
                continue
            marker = read_marker(content, position)
            first = first_offsets.pop(header.producer_id, None)
            if marker is not None and first is not None:
                found.append(Txn(first, header.base_offset, marker.type is MarkerType.COMMIT))
    return found


def draw(
    path: Path,
    title: str,
    transactions: Sequence[Txn],
    window: tuple[int, int],
    samples: Sequence[Sample],
    events: Sequence[tuple[float, str]],
) -> None:
    """Write the picture as SVG.

    Args:
        path: where to.
        title: above it.
        transactions: of the partition.
        window: the offsets [start, end) that the upper part shows.
        samples: the watermarks as they moved.
        events: (seconds, what happened), for the lower part.
    """
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='760' viewBox='0 0 {WIDTH} 760' {FONT}>",
        "<rect width='100%' height='100%' fill='white'/>",
        f"<text x='{MARGIN_LEFT}' y='34' font-size='20' font-weight='600' fill='{INK}'>{escape(title)}</text>",
        *_transactions(transactions, window),
        *_watermarks(samples, events),
        "</svg>",
    ]
    path.write_text("\n".join(parts))


def _transactions(transactions: Sequence[Txn], window: tuple[int, int]) -> list[str]:
    top, bottom = 100, 330
    low, high = window

    def x(offset: float) -> float:
        return MARGIN_LEFT + (offset - low) / max(high - low, 1) * (WIDTH - MARGIN_LEFT - MARGIN_RIGHT)

    parts = [
        f"<text x='{MARGIN_LEFT}' y='66' font-size='14' fill='{INK}'>Transactions over offsets {low:,} to {high:,}: a bar from the first record to the marker</text>"
    ]
    parts += legend(
        MARGIN_LEFT,
        88,
        [(GOOD, "committed"), (BAD, "aborted: a read-committed reader never sees it")],
    )
    for tick in ticks(low, high, 10):
        parts.append(
            f"<line x1='{x(tick):.1f}' x2='{x(tick):.1f}' y1='{top}' y2='{bottom}' stroke='{FAINT}'/>"
        )
        parts.append(
            f"<text x='{x(tick):.1f}' y='{bottom + 18}' font-size='12' fill='{INK}' text-anchor='middle'>{tick:,.0f}</text>"
        )
    shown = [txn for txn in transactions if txn.marker_offset >= low and txn.first_offset < high]
    lanes = 12
    height = (bottom - top) / lanes
    for place, txn in enumerate(shown):
        left, right = x(max(txn.first_offset, low)), x(min(txn.marker_offset + 1, high))
        y = top + (place % lanes) * height
        colour = GOOD if txn.committed else BAD
        parts.append(
            f"<rect x='{left:.1f}' y='{y + 2:.1f}' width='{max(right - left, 1.5):.1f}' height='{height - 4:.1f}' rx='2' fill='{colour}'/>"
        )
    parts.append(
        f"<text x='{(MARGIN_LEFT + WIDTH - MARGIN_RIGHT) / 2}' y='{bottom + 40}' font-size='13' fill='{INK}' text-anchor='middle'>offset</text>"
    )
    return parts


def _watermarks(samples: Sequence[Sample], events: Sequence[tuple[float, str]]) -> list[str]:
    top, bottom = 470, 690
    if not samples:
        return []
    end_s = max(samples[-1].at_s, 0.001)
    end_offset = max(1, *(sample.high_watermark for sample in samples))

    def x(at_s: float) -> float:
        return MARGIN_LEFT + at_s / end_s * (WIDTH - MARGIN_LEFT - MARGIN_RIGHT)

    def y(offset: float) -> float:
        return bottom - offset / end_offset * (bottom - top)

    parts = [f"<text x='{MARGIN_LEFT}' y='414' font-size='14' fill='{INK}'>Watermarks over time</text>"]
    parts += legend(
        MARGIN_LEFT,
        436,
        [
            (HIGH, "high watermark: durable"),
            (STABLE, "last stable offset: decided, what a read-committed reader sees"),
        ],
    )
    for tick in ticks(0, end_offset, 5):
        parts.append(
            f"<line x1='{MARGIN_LEFT}' x2='{WIDTH - MARGIN_RIGHT}' y1='{y(tick):.1f}' y2='{y(tick):.1f}' stroke='{FAINT}'/>"
        )
        parts.append(
            f"<text x='{MARGIN_LEFT - 8}' y='{y(tick) + 4:.1f}' font-size='12' fill='{INK}' text-anchor='end'>{tick:,.0f}</text>"
        )
    for tick in ticks(0, end_s, 12):
        parts.append(
            f"<text x='{x(tick):.1f}' y='{bottom + 18}' font-size='12' fill='{INK}' text-anchor='middle'>{tick:g} s</text>"
        )
    for place, (at_s, label) in enumerate(events):
        near_end = x(at_s) > WIDTH * 0.75
        anchor, shift = ("end", -5) if near_end else ("start", 5)
        parts.append(
            f"<line x1='{x(at_s):.1f}' x2='{x(at_s):.1f}' y1='{top - 12}' y2='{bottom}' stroke='{BAD}' stroke-dasharray='4 3'/>"
        )
        parts.append(
            f"<text x='{x(at_s) + shift:.1f}' y='{top - 4 + 16 * place}' font-size='12' fill='{BAD}' text-anchor='{anchor}'>{escape(label)}</text>"
        )
    for colour, width, values in (
        (HIGH, 5, [(sample.at_s, sample.high_watermark) for sample in samples]),
        (STABLE, 2, [(sample.at_s, sample.last_stable_offset) for sample in samples]),
    ):
        points = " ".join(f"{x(at_s):.1f},{y(offset):.1f}" for at_s, offset in values)
        parts.append(
            f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='{width}' stroke-linejoin='round'/>"
        )
    return parts
