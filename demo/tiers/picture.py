"""The scene in a picture: each segment over time, by tier; and what each reader read, from where, with which requests."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from demo.flights import AIRPORTS
from demo.svg import BAD, FONT, GOOD, QUIET, badge, box, line, text
from demo.tiers.picture_reads import draw_reads, reads_height
from demo.tiers.results import DISK_LOST, Phase, Results
from demo.tiers.segments import Segment, Stay, Tier
from demo.tiers.time_axis import TimeAxis

WIDTH, LEFT, RIGHT = 1000, 90, 970
KEY_Y = 154
STRIP_TOP, STRIP_HEIGHT = 170, 24
BANDS_TOP, BANDS_HEIGHT, BAND_GAP = 232, 372, 14
READS_TOP = 698
CHARACTER_WIDTH = 6.9  # of text of this size, at most: fonts differ
SMALL, LARGE = 14, 17
COLOURS = {
    Tier.GROWING: "#f6d6a3",
    Tier.LOCAL: "#e9a23b",
    Tier.BOTH: "#57b894",
    Tier.STORE: "#3f78b5",
    Tier.LOST: "#f0b4bd",
}
SHADES = "#7b8494", "#4b5563"
SHOWN = tuple(COLOURS)


def draw(path: Path, results: Results) -> None:
    """Write the picture as SVG."""
    x = TimeAxis(results.phases, LEFT, RIGHT)
    height = READS_TOP + reads_height(results)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' {FONT}>",
        "<rect width='100%' height='100%' fill='white'/>",
        *_titles(results),
        *_bands(x, results),
        *_shortened(x),
        *_strip(x, results.phases),
        *_loss(x, results),
        *draw_reads(results, READS_TOP),
        "</svg>",
    ]
    path.write_text("\n".join(parts))


def _titles(results: Results) -> list[str]:
    verdict = results.reads[-1].verdict
    written = (
        f"{results.flight_count:,} flights in {results.transaction_count:,} transactions, in a partition for each airport, in segments of "
        f"{results.segment_size >> 10} KiB."
    )
    found = (
        f"At the end {verdict.lost_count:,} are lost, {verdict.duplicated_count:,} duplicated, "
        f"{verdict.aborted_count:,} aborted ones shown."
    )
    return [
        text(LEFT, 44, "A log in two tiers, and what a lost disk does to it", 24, weight=600),
        text(LEFT, 70, written, 15, QUIET),
        text(LEFT, 93, found, 15, GOOD if results.is_good else BAD, weight=600),
        text(LEFT, 130, "Where each segment was: a line for each, the oldest at the top", LARGE, weight=600),
        *_key(KEY_Y),
    ]


def _key(y: float) -> list[str]:
    """Return the meaning of the colours of segments, in a row."""
    widths = [CHARACTER_WIDTH * len(tier.value) + 34 for tier in SHOWN]
    x = float(LEFT)
    parts = []
    for tier, width in zip(SHOWN, widths, strict=True):
        parts.append(box(x, y - 10, 14, 10, COLOURS[tier], "rx='2'"))
        parts.append(text(x + 20, y, tier.value, SMALL))
        x += width
    return parts


def _strip(x: TimeAxis, phases: Sequence[Phase]) -> list[str]:
    """Return the phases over time, with their names where there is room, and the other names below."""
    parts, below = [], []
    for number, phase in enumerate(phases, 1):
        left, width = x(phase.start_s), max(x(phase.end_s) - x(phase.start_s) - 2, 14)
        label = f"{number}  {phase.name}"
        is_wide = width > CHARACTER_WIDTH * 1.2 * len(label)
        below += [] if is_wide else [label]
        colour = BAD if phase.name == DISK_LOST else SHADES[number % 2]
        parts.append(badge(left, STRIP_TOP, width, STRIP_HEIGHT, label if is_wide else str(number), colour))
    for row, words in enumerate(_rows_of(below)):
        names = text(RIGHT, STRIP_TOP + 39 + 16 * row, words, SMALL, QUIET, anchor="end")
        parts.append(names.replace("<text", "<text xml:space='preserve'"))
    return parts


def _rows_of(labels: Sequence[str]) -> list[str]:
    """Return labels in one row, or in two if one would be too long."""
    gap = "     "
    whole = gap.join(labels)
    if CHARACTER_WIDTH * 1.1 * len(whole) <= RIGHT - LEFT / 2:
        return [whole]
    middle = (len(labels) + 1) // 2
    return [gap.join(labels[:middle]), gap.join(labels[middle:])]


def _loss(x: TimeAxis, results: Results) -> list[str]:
    """Return the moment at which the disk is lost, and what is lost with it."""
    parts, bottom, dash = [], BANDS_TOP + BANDS_HEIGHT, "stroke-dasharray='4 3'"
    for at in (x(phase.start_s) for phase in results.phases if phase.name == DISK_LOST):
        said = f"the disk is lost, and {results.lost_count:,} flights that were only there; they are written again"
        is_late = at + CHARACTER_WIDTH * len(said) > RIGHT
        anchor, shift = ("end", -6) if is_late else ("start", 6)
        parts.append(line(at, BANDS_TOP - 4, at, bottom + 4, BAD, dash))
        parts.append(line(at, bottom + 30, at, bottom + 46, BAD, dash))  # not across the axis
        parts.append(text(at + shift, bottom + 43, said, SMALL, BAD, anchor=anchor))
    return parts


def _bands(x: TimeAxis, results: Results) -> list[str]:
    """Return a band for each partition, with a line for each segment."""
    bottom = BANDS_TOP + BANDS_HEIGHT
    parts = []
    for at_s, label in x.ticks():
        parts.append(line(x(at_s), BANDS_TOP, x(at_s), bottom))
        parts.append(text(x(at_s), bottom + 20, label, SMALL, QUIET, anchor="middle"))
    height = (BANDS_HEIGHT - BAND_GAP * (len(AIRPORTS) - 1)) / len(AIRPORTS)
    most = max(sum(one.partition == place for one in results.segments) for place in range(len(AIRPORTS)))
    for place, airport in enumerate(AIRPORTS):
        top = BANDS_TOP + place * (height + BAND_GAP)
        own = [one for one in results.segments if one.partition == place]
        parts.append(text(LEFT - 14, top + height / 2 + 5, airport, 15, anchor="end", weight=600))
        parts += _lanes(x, own, top, height / max(most, 1))
    return parts


def _shortened(x: TimeAxis) -> list[str]:
    """Return the mark of the phase that is drawn shorter than it was."""
    if x.shortened is None:
        return []
    start, end = x(x.shortened.start_s), x(x.shortened.end_s)
    seconds = x.shortened.end_s - x.shortened.start_s
    middle, bottom = (start + end) / 2, BANDS_TOP + BANDS_HEIGHT
    gap = f"<path d='M{middle - 6:.1f},{bottom + 4} l10,{-BANDS_HEIGHT - 8} h8 l-10,{BANDS_HEIGHT + 8} z' fill='white'/>"
    return [gap, text(middle, bottom + 20, f"{seconds:.0f} s, shortened", SMALL, QUIET, anchor="middle")]


def _lanes(x: TimeAxis, segments: Iterable[Segment], top: float, pitch: float) -> list[str]:
    """Return the segments of a partition, the oldest at the top."""
    parts = []
    for number, segment in enumerate(segments):
        y, thick = top + number * pitch, max(pitch - 1, 1)
        for stay in segment.stays:
            parts += _stay(x, stay, y, thick)
    return parts


def _stay(x: TimeAxis, stay: Stay, y: float, thick: float) -> list[str]:
    left, width = x(stay.start_s), x(stay.end_s) - x(stay.start_s)
    found = [box(left, y, max(width, 0.8), thick, COLOURS[stay.tier])]
    if stay.tier is Tier.LOST:
        found.append(box(left - 2, y - 1, 4, thick + 2, BAD))
    return found
