"""`partition`: a partition of the demo's flights, with the offsets that decide what readers get, and its transactions."""

from collections.abc import Callable
from dataclasses import dataclass

from demo.flights import AIRPORTS, by_hour, read_flights
from demo.pictures.pen import WIDTH, Palette, Pen
from demo.pictures.writers import Txn, Writers
from demo.svg import box

TOPIC, LATE = "flights", "late"
ROWS = 400  # of the file: the first hours of the year
DELETED_HOURS, LATE_HOUR, LAST_HOUR = 2, 4, 6
LEFT, RIGHT = 84, WIDTH - 24
BAR_TOP, BAR_HEIGHT = 92, 44
LANE_TOP, LANE_HEIGHT, TXN_HEIGHT = 168, 46, 26
HEIGHT = LANE_TOP + LANE_HEIGHT * 4 + 114
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Found:
    """What the broker says of the partition, and what its files have.

    Attributes:
        bounds: log start, last stable offset and high watermark.
        transactions: those of which a record is left, in the order of their first records.
    """

    bounds: tuple[int, int, int]
    transactions: list[Txn]


def play(writers: Writers) -> Found:
    """Write some hours, one transaction for each airport and hour, and leave two transactions open."""
    writers.create(TOPIC)
    flights = list(read_flights(ROWS))
    hours = {airport: by_hour(iter(flights), airport) for airport in AIRPORTS}
    for hour in range(LAST_HOUR + 1):
        values = {
            airport: [flight.encode(doomed=False) for flight in hours[airport][hour]] for airport in AIRPORTS
        }
        is_late = hour >= LATE_HOUR
        names = {airport: LATE if is_late and airport == "LGA" else airport for airport in AIRPORTS}
        for part in (0, 1):
            for airport in AIRPORTS:
                if mine := values[airport][part::2]:
                    writers.write(names[airport], TOPIC, mine)
        for airport in AIRPORTS:
            is_open = names[airport] == LATE or (hour == LAST_HOUR and airport == "JFK")
            if not is_open:
                writers.end(airport, is_committed=(hour, airport) not in ((3, "JFK"), (5, "EWR")))
        if hour == DELETED_HOURS - 1:
            _, end, _ = writers.bounds(TOPIC)
            writers.client.admin.topics.delete_records({(TOPIC, 0): end})
    start, stable, high = writers.bounds(TOPIC)
    left = [txn for txn in writers.transactions(TOPIC) if txn.spans[-1][1] >= start]
    return Found((start, stable, high), left)


def draw(palette: Palette, found: Found) -> str:
    """The log as a bar, and below it a lane for each producer."""
    pen = Pen(palette)
    start, stable, high = found.bounds

    def x(offset: float) -> float:
        return LEFT + offset / high * (RIGHT - LEFT)

    lanes = (*AIRPORTS, LATE)
    bottom = LANE_TOP + LANE_HEIGHT * len(lanes) - 12
    committed = [offset for txn in found.transactions if txn.is_committed for offset in txn.offsets]
    waiting_count = sum(offset >= stable for offset in committed)
    parts = [
        pen.words(LEFT, 34, "A list of records (one partition)", 20, weight=600),
        pen.words(RIGHT, 34, "the newest record is on the right", 16, palette.quiet, anchor="end"),
        box(x(0), BAR_TOP, x(start) - x(0), BAR_HEIGHT, palette.faint),
        box(x(start), BAR_TOP, x(stable) - x(start), BAR_HEIGHT, palette.readable),
        box(x(stable), BAR_TOP, x(high) - x(stable), BAR_HEIGHT, palette.waiting),
        _in_bar(pen, (x(0) + x(start)) / 2, "deleted", palette.quiet),
        _in_bar(pen, (x(start) + x(stable)) / 2, "readers get this part", "white"),
        _in_bar(pen, (x(stable) + x(high)) / 2, "this part has to wait", palette.ink),
    ]
    marks = ((start, "log start", "middle"), (stable, "LSO", "middle"), (high, "high watermark", "end"))
    for offset, label, anchor in marks:
        parts += [
            pen.rule(x(offset), BAR_TOP - 6, x(offset), bottom, palette.edge, "stroke-dasharray='6 4'"),
            pen.words(
                x(offset), BAR_TOP - 14, f"{label} {offset}", 17, palette.edge, anchor=anchor, weight=600
            ),
        ]
    parts.append(pen.words(8, LANE_TOP - 8, "producer", 15, palette.quiet))
    for number, lane in enumerate(lanes):
        top = LANE_TOP + LANE_HEIGHT * number
        parts.append(pen.words(LEFT - 14, top + 19, lane, 17, anchor="end", weight=600))
        for txn in found.transactions:
            if txn.writer == lane:
                parts += _transaction(pen, txn, top, [x(offset) for offset in (start, high)], x)
    parts += _legend(pen, bottom + 36)
    parts += [
        pen.words(
            LEFT,
            bottom + 74,
            f"{waiting_count} committed records wait for the oldest open transaction: that of {LATE}.",
            16,
        ),
        pen.words(
            LEFT,
            bottom + 102,
            "Log start: the first record that is left. High watermark: the end of the list.",
            16,
        ),
    ]
    return pen.picture(
        HEIGHT,
        f"A partition of flights. Log start {start}, last stable offset {stable}, high watermark {high}. "
        f"Readers get the records before the last stable offset; {waiting_count} committed records wait behind the open "
        f"transaction of {LATE}.",
        parts,
    )


def _in_bar(pen: Pen, x: float, words: str, colour: str) -> str:
    return (
        f"<text x='{x:.1f}' y='{BAR_TOP + 28}' font-size='17' font-weight='600' fill='{colour}' "
        f"text-anchor='middle'>{words}</text>"
    )


def _transaction(pen: Pen, txn: Txn, top: float, sight: list[float], x: Scale) -> list[str]:
    """A box from the first record to the marker, or to the end of the log, and in it the batches."""
    palette = pen.palette
    begin, end = max(x(txn.spans[0][0]), sight[0]), sight[1] if txn.marker is None else x(txn.marker + 1)
    colour = palette.open if txn.marker is None else palette.readable if txn.is_committed else palette.aborted
    parts = [box(begin, top, end - begin, TXN_HEIGHT, colour, "rx='3' opacity='0.3'")]
    for first, last in txn.spans:
        left, right = max(x(first), begin), x(last + 1)
        if right > left:
            parts.append(box(left, top, right - left, TXN_HEIGHT, colour, "rx='2'"))
    if txn.marker is not None and not txn.is_committed:
        parts.append(pen.rule(begin - 3, top + TXN_HEIGHT / 2, end + 3, top + TXN_HEIGHT / 2, palette.ink))
    if txn.marker is None:
        outline = f"rx='3' stroke='{colour}' stroke-width='2' stroke-dasharray='5 3' fill-opacity='0'"
        parts.append(box(begin, top, end - begin, TXN_HEIGHT, colour, outline))
    return parts


def _legend(pen: Pen, y: float) -> list[str]:
    palette = pen.palette
    parts = []
    left = float(LEFT)
    entries = (
        (palette.readable, "committed transaction"),
        (palette.aborted, "aborted transaction"),
        (palette.open, "open transaction"),
    )
    for colour, label in entries:
        parts += [box(left, y - 14, 22, 16, colour, "rx='2'"), pen.words(left + 30, y, label, 16)]
        if colour == palette.aborted:
            parts.append(pen.rule(left - 3, y - 6, left + 25, y - 6, palette.ink))
        left += 236
    return parts
