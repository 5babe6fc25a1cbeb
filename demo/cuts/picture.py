"""The scene in a picture: who waited for the open transaction, and which micro-batches held torn ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from demo.cuts.hours import Plan
from demo.cuts.ledger import Ledger, Moment
from demo.cuts.spark_watch import BY_CUT, QUERIES, MicroBatch, SparkWatch, summarize
from demo.svg import BAD, FAINT, FONT, GOOD, QUIET, box, legend, line, text, ticks, width_of

WIDTH, HEIGHT, LEFT, RIGHT = 1000, 1000, 90, 970
OPEN_TOP, OPEN_HEIGHT = 124, 28
READ_TOP, READ_BOTTOM = 176, 476
JOINS_TOP = 546
ROW_TOPS, ROW_HEIGHT, BAR_HEIGHT_MAX = (670, 846), 110, 90
SMALL, LARGE = 14, 17
RED_HEIGHT_MIN = 4
LABELLED_WIDTH_MIN = 9  # for each digit
OPEN, OPEN_INK, COMMITTED = "#e9a23b", "#a8680c", "#c3cad6"
THERE = "committed, so there to be seen"
ARROW_TIP = (
    "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
    f"orient='auto-start-reverse'><path d='M0,0 L8,4 L0,8 z' fill='{BAD}'/></marker></defs>"
)
Scale = Callable[[float], float]


def draw(path: Path, plan: Plan, ledger: Ledger, spark: SparkWatch) -> None:
    """Write the picture as SVG.

    Args:
        path: where to.
        plan: what was written.
        ledger: what was committed and read, and when.
        spark: what the micro-batches held.
    """
    batches = {query: spark.batches(query) for query in QUERIES}
    ends_s = [batch.ended_at - ledger.began_at for each in batches.values() for batch in each]
    end_s = max([ledger.moments[-1].at_s, *ends_s])

    def x(at_s: float) -> float:
        return LEFT + at_s / end_s * (RIGHT - LEFT)

    reached = ledger.commit_count
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT}>",
        "<rect width='100%' height='100%' fill='white'/>",
        text(LEFT, 42, "One transaction stays open. Who waits, who sees the others whole?", 23, weight=600),
        text(
            LEFT,
            66,
            f"{reached:,} transactions, each with an hour of an airport of New York, of {ledger.committed_count:,} records in "
            "two topics",
            SMALL,
            QUIET,
        ),
        *_seconds(x, end_s),
        *_reading(x, ledger),
        *_open_transaction(x, plan, ledger),
        *_joins(x, ledger, batches, spark.offsets_per_batch),
        "</svg>",
    ]
    path.write_text("\n".join(parts))


def _seconds(x: Scale, end_s: float) -> list[str]:
    """The axis of time, one for the whole picture."""
    parts = []
    bottom = ROW_TOPS[-1] + ROW_HEIGHT
    for tick in ticks(0, end_s, 10):
        parts.append(line(x(tick), READ_TOP, x(tick), READ_BOTTOM))
        parts.extend(line(x(tick), top, x(tick), top + ROW_HEIGHT) for top in ROW_TOPS)
        parts.extend(
            text(x(tick), y + 22, f"{tick:g} s", SMALL, QUIET, anchor="middle") for y in (READ_BOTTOM, bottom)
        )
    return parts


def _reading(x: Scale, ledger: Ledger) -> list[str]:
    """What was committed, and what each reader has had of it."""
    ordinary, ordered = ledger.sights
    moments = ledger.moments
    highest = max(1, moments[-1].committed_count)

    def y(count: float) -> float:
        return READ_BOTTOM - count / highest * (READ_BOTTOM - READ_TOP)

    parts = [
        text(LEFT, 108, "Records that a read-committed Kafka consumer has seen", LARGE, weight=600),
        *legend(RIGHT - 20 - width_of(THERE, SMALL), 108, [(COMMITTED, THERE)], SMALL),
        _axis_name(READ_TOP, READ_BOTTOM, "records"),
    ]
    for tick in ticks(0, highest, 5):
        parts.append(line(LEFT, y(tick), RIGHT, y(tick)))
        parts.append(text(LEFT - 10, y(tick) + 5, f"{tick:,.0f}", SMALL, QUIET, anchor="end"))
    curves: list[tuple[str, int, Callable[[Moment], int]]] = [
        (COMMITTED, 9, lambda moment: moment.committed_count),
        (BAD, 3, lambda moment: moment.read_counts[ordinary]),
        (GOOD, 3, lambda moment: moment.read_counts[ordered]),
    ]
    for colour, width, value in curves:
        points = " ".join(f"{x(moment.at_s):.1f},{y(value(moment)):.1f}" for moment in moments)
        parts.append(
            f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='{width}' stroke-linejoin='round' stroke-linecap='round'/>"
        )
    return [*parts, *_names(x, y, ledger)]


def _axis_name(top: float, bottom: float, name: str) -> str:
    """Return the name of a vertical axis, which is beside its numbers and reads upwards."""
    at, middle = 22, (top + bottom) / 2
    words = text(at, middle, name, SMALL, QUIET, anchor="middle")
    return words.replace("<text", f"<text transform='rotate(-90 {at} {middle:.1f})'", 1)


def _names(x: Scale, y: Scale, ledger: Ledger) -> list[str]:
    """Each curve says beside itself what it is, and an arrow how far the one was behind."""
    ordinary, ordered = ledger.sights
    worst = max(ledger.moments, key=lambda moment: moment.behind_count(ordinary))
    middle = min(ledger.moments, key=lambda moment: abs(moment.at_s - worst.at_s * 0.6))
    low, high = y(worst.read_counts[ordinary]), y(worst.committed_count)
    at = x(worst.at_s)
    # Beside the curves is room to the left of them; to the right where Spark has taken far longer than the writers.
    is_crowded = at < LEFT + 420
    anchor = "start" if is_crowded else "end"
    ordered_at = (
        (at + 40, READ_TOP + 44) if is_crowded else (x(middle.at_s) - 16, y(middle.committed_count) - 24)
    )
    behind_at = at + 40 if is_crowded else at - 18
    delay = f"median: {ledger.sights[ordered].median_delay_s() * 1000:,.0f} ms behind"
    parts = [
        text(ordered_at[0], ordered_at[1], f"topics {ordered}", 14, GOOD, anchor=anchor, weight=600),
        text(ordered_at[0], ordered_at[1] + 18, delay, 14, GOOD, anchor=anchor),
        text(x(worst.at_s * 0.62), low - 10, ordinary, 14, BAD, anchor="middle", weight=600),
    ]
    if low - high > 40:
        behind = f"{worst.behind_count(ordinary):,} records", f"and {worst.behind_s[ordinary]:.1f} s behind"
        tips = "stroke-width='1.5' marker-start='url(#tip)' marker-end='url(#tip)'"
        parts += [
            ARROW_TIP,
            line(at - 8, low - 4, at - 8, high + 7, BAD, tips),
            text(behind_at, (low + high) / 2 - 2, behind[0], 14, BAD, anchor=anchor, weight=600),
            text(behind_at, (low + high) / 2 + 16, behind[1], 14, BAD, anchor=anchor),
        ]
    return parts


def _open_transaction(x: Scale, plan: Plan, ledger: Ledger) -> list[str]:
    if ledger.opened_at_s is None or ledger.closed_at_s is None:
        return []
    left, width = x(ledger.opened_at_s), x(ledger.closed_at_s) - x(ledger.opened_at_s)
    is_narrow = width < 440
    label = f"a transaction of {len(plan.late.records):,} records is open for {ledger.open_for_s():.1f} s"
    dash = "stroke-dasharray='4 3'"
    # Not across the texts between the curves and the bars.
    spans = [(OPEN_TOP + OPEN_HEIGHT, READ_BOTTOM), *((top, top + ROW_HEIGHT) for top in ROW_TOPS)]
    return [
        box(left, OPEN_TOP, width, OPEN_HEIGHT, OPEN, "rx='4'"),
        text(left + width + 8, OPEN_TOP + 19, label, SMALL, OPEN_INK, weight=600)
        if is_narrow
        else text(left + width / 2, OPEN_TOP + 19, label, SMALL, anchor="middle", weight=600, outline=OPEN),
        *(line(at, top, at, bottom, OPEN, dash) for at in (left, left + width) for top, bottom in spans),
    ]


def _joins(x: Scale, ledger: Ledger, batches: dict[str, list[MicroBatch]], limit: int) -> list[str]:
    """A bar for each micro-batch: as high as the transactions of which it holds anything."""
    highest = max((batch.transaction_count for each in batches.values() for batch in each), default=1)
    parts = [
        text(
            LEFT, JOINS_TOP, "Spark joins flights with weather: a bar for each micro-batch", LARGE, weight=600
        ),
        text(
            LEFT,
            JOINS_TOP + 24,
            "Its height counts the transactions of which it holds records. It holds up to "
            f"{limit:,} records (maxOffsetsPerTrigger).",
            SMALL,
            QUIET,
        ),
        *legend(
            LEFT,
            JOINS_TOP + 50,
            [
                (GOOD, "whole in this micro-batch"),
                (BAD, "torn: only a part is in it; the number counts them"),
            ],
            SMALL,
        ),
    ]
    for (query, each), top in zip(batches.items(), ROW_TOPS, strict=True):
        parts += _row(query, each, top, x, ledger, highest)
    return parts


def _row(
    query: str, batches: Sequence[MicroBatch], top: int, x: Scale, ledger: Ledger, highest: int
) -> list[str]:
    bottom = top + ROW_HEIGHT
    seen = summarize(batches)
    torn = len(seen.torn)
    said = f"torn transactions: {torn:,} · flights without their weather: {seen.bare_count:,}"
    option = 'option("cut", "true")' if query == BY_CUT else "an end offset for each partition"
    parts = [
        text(LEFT, top - 12, query, SMALL + 1, weight=600),
        text(LEFT + 92, top - 12, option, SMALL, QUIET),
        text(RIGHT, top - 12, said, SMALL, BAD if torn else GOOD, anchor="end", weight=600),
        _axis_name(top, bottom, "transactions"),
    ]
    for tick in ticks(0, highest, 3):
        level = bottom - tick / highest * BAR_HEIGHT_MAX
        parts.append(line(LEFT, level, RIGHT, level, FAINT if tick else COMMITTED))
        parts.append(text(LEFT - 10, level + 5, f"{tick:,.0f}", SMALL, QUIET, anchor="end"))
    for batch in batches:
        if batch.ended_at >= ledger.began_at:  # those before are to get warm
            parts += _bar(batch, bottom, x, ledger, highest)
    return parts


def _bar(batch: MicroBatch, bottom: int, x: Scale, ledger: Ledger, highest: int) -> list[str]:
    left = x(max(batch.began_at - ledger.began_at, 0))
    width = max(x(batch.ended_at - ledger.began_at) - left - 1.5, 3)
    # What is torn is to be seen, be it one of a thousand.
    red = max(len(batch.torn) / highest * BAR_HEIGHT_MAX, RED_HEIGHT_MIN) if batch.torn else 0.0
    height = max(batch.transaction_count / highest * BAR_HEIGHT_MAX, red)
    parts = [box(left, bottom - height, width, height, GOOD, "rx='1'")]
    if batch.torn:
        parts.append(box(left, bottom - height, width, red, BAD, "rx='1'"))
        label = f"{len(batch.torn)}"
        if width > LABELLED_WIDTH_MIN * len(label):
            parts.append(text(left + width / 2, bottom - height - 5, label, SMALL, BAD, anchor="middle"))
    return parts
