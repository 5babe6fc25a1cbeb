"""The scene in a picture: who waited for the open transaction, and which micro-batches held torn ones."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from demo.cuts.hours import Plan
from demo.cuts.ledger import Ledger, Moment
from demo.cuts.spark_watch import BY_CUT, QUERIES, MicroBatch, SparkWatch, summarize
from demo.svg import BAD, FONT, GOOD, QUIET, box, line, text, ticks

WIDTH, HEIGHT, LEFT, RIGHT = 1200, 860, 90, 1140
READ_TOP, READ_BOTTOM = 176, 476
ROW_TOPS, ROW_HEIGHT, BAR_HEIGHT_MAX = (586, 716), 90, 72
LABELLED_WIDTH_MIN = 14
OPEN, COMMITTED = "#e9a23b", "#c3cad6"
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
        text(
            LEFT, 42, "One transaction stays open. Who waits, and who sees the others whole?", 23, weight=600
        ),
        text(
            LEFT,
            66,
            f"New York, {plan.hours[0][:10]} to {plan.hours[-1][:10]}: {reached:,} transactions, an hour of an "
            f"airport each, of {ledger.committed_count:,} records over two topics and 7 partitions",
            14,
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
    for tick in ticks(0, end_s, 12):
        parts.append(line(x(tick), READ_TOP, x(tick), READ_BOTTOM))
        parts.extend(line(x(tick), top, x(tick), top + ROW_HEIGHT) for top in ROW_TOPS)
        parts.extend(
            text(x(tick), y + 19, f"{tick:g} s", 12, QUIET, anchor="middle") for y in (READ_BOTTOM, bottom)
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
        box(RIGHT - 226, 98, 14, 10, COMMITTED, "rx='2'"),
        text(RIGHT, 108, "committed, so there to be seen", anchor="end"),
        text(LEFT, 108, "Records that a read-committed Kafka consumer has seen", 16, weight=600),
    ]
    for tick in ticks(0, highest, 5):
        parts.append(line(LEFT, y(tick), RIGHT, y(tick)))
        parts.append(text(LEFT - 10, y(tick) + 4, f"{tick:,.0f}", 12, QUIET, anchor="end"))
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
    delay = f"{ledger.sights[ordered].median_delay_s() * 1000:,.0f} ms after the commit (median)"
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
    is_narrow = width < 320
    label = f"a transaction of {len(plan.late.records):,} records is open for {ledger.open_for_s():.1f} s"
    dash = "stroke-dasharray='4 3'"
    bottom = ROW_TOPS[-1] + ROW_HEIGHT
    return [
        box(left, 124, width, 26, OPEN, "rx='4'"),
        text(left + width + 8, 142, label, 13, OPEN, weight=600)
        if is_narrow
        else f"<text x='{left + width / 2:.1f}' y='142' font-size='13' font-weight='600' fill='white' text-anchor='middle'>{escape(label)}</text>",
        *(line(at, 150, at, bottom, OPEN, dash) for at in (left, left + width)),
    ]


def _joins(x: Scale, ledger: Ledger, batches: dict[str, list[MicroBatch]], limit: int) -> list[str]:
    """A bar for each micro-batch: as high as the transactions of which it holds anything."""
    highest = max((batch.transaction_count for each in batches.values() for batch in each), default=1)
    parts = [
        text(
            LEFT,
            540,
            f"Spark joins flights with weather, maxOffsetsPerTrigger {limit:,}",
            16,
            weight=600,
        ),
        box(RIGHT - 288, 530, 14, 10, GOOD, "rx='2'"),
        text(RIGHT - 268, 540, "transactions whole"),
        box(RIGHT - 134, 530, 14, 10, BAD, "rx='2'"),
        text(RIGHT, 540, "transactions torn", anchor="end"),
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
    option = 'option("cut", "true")' if query == BY_CUT else "each partition up to an offset of its own"
    parts = [
        line(LEFT, bottom, RIGHT, bottom, COMMITTED),
        text(LEFT, top - 10, query, 14, weight=600),
        text(LEFT + 86, top - 10, option, 13, QUIET),
        text(RIGHT, top - 10, said, 14, BAD if torn else GOOD, anchor="end", weight=600),
    ]
    for batch in batches:
        if batch.ended_at < ledger.began_at:
            continue  # to get warm
        left = x(batch.began_at - ledger.began_at)
        width = max(x(batch.ended_at - ledger.began_at) - left - 1.5, 3)
        height = batch.transaction_count / highest * BAR_HEIGHT_MAX
        # What is torn is to be seen, be it one of a thousand.
        red = max(len(batch.torn) / highest * BAR_HEIGHT_MAX, 4) if batch.torn else 0.0
        parts.append(box(left, bottom - height, width, height, GOOD, "rx='1'"))
        if red:
            parts.append(box(left, bottom - height, width, red, BAD, "rx='1'"))
        if red and width > LABELLED_WIDTH_MIN:
            label = f"{len(batch.torn)}"
            parts.append(text(left + width / 2, bottom - height - 4, label, 11, BAD, anchor="middle"))
    return parts
