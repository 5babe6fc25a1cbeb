"""`open`: what readers of an ordinary topic get while a transaction is open, and after it has committed."""

from dataclasses import dataclass

from demo.pictures.pen import WIDTH, Palette, Pen
from demo.pictures.story import NAMES, TOPIC, begin
from demo.pictures.writers import Txn, Writers

LEFT, CELL, GAP, CELL_HEIGHT = 24, 64, 6, 38
ROW_TOPS = (66, 168, 304)
HEIGHT = 366


@dataclass(frozen=True, slots=True)
class Found:
    """What is stored and read.

    Attributes:
        transactions: those of the partition, when all have ended.
        stable: the last stable offset while B is open.
        high: the high watermark then.
        before: what a reader gets while B is open.
        after: what a reader gets when B has committed.
    """

    transactions: list[Txn]
    stable: int
    high: int
    before: list[tuple[int, str]]
    after: list[tuple[int, str]]


def play(writers: Writers) -> Found:
    """Read before the commit of B, and after it."""
    begin(writers)
    _, stable, high = writers.bounds(TOPIC)
    before = writers.read(TOPIC)
    writers.end("B")
    return Found(writers.transactions(TOPIC), stable, high, before, writers.read(TOPIC))


def colour_of(palette: Palette, name: str) -> str:
    """The colour of a transaction by its name, or by the value of one of its records."""
    return palette.transactions[NAMES.index(name[0])]


def draw(palette: Palette, found: Found) -> str:
    """Three rows with the same scale: the log, and what the reader has of it at two times."""
    pen = Pen(palette)

    def x(offset: int) -> float:
        return LEFT + offset * (CELL + GAP)

    log, before, after = ROW_TOPS
    parts = [
        pen.words(LEFT, log - 32, "A partition: four transactions, and how each ended", weight=600),
        pen.words(LEFT, before - 22, "What readers get while B is open", weight=600),
        pen.words(LEFT, after - 22, "What readers get after B has committed", weight=600),
    ]
    for txn in found.transactions:
        colour = colour_of(palette, txn.writer)
        for offset in txn.offsets:
            parts.append(pen.cell(x(offset), log, CELL, CELL_HEIGHT, txn.writer, colour))
            if txn.is_committed and offset not in dict(found.before) and offset < found.high:
                is_open = txn.marker is not None and txn.marker >= found.high
                label = "open" if is_open else "waits"
                parts.append(pen.outlined(x(offset), before, CELL, CELL_HEIGHT, label, colour))
        if txn.marker is not None:
            end = "commit" if txn.is_committed else "abort"
            parts.append(pen.outlined(x(txn.marker), log, CELL, CELL_HEIGHT, "", colour))
            parts.append(pen.words(x(txn.marker) + CELL / 2, log + 16, end, 14, anchor="middle"))
            parts.append(pen.words(x(txn.marker) + CELL / 2, log + 32, txn.writer, 14, anchor="middle"))
    for top, read in ((before, found.before), (after, found.after)):
        parts += [
            pen.cell(x(offset), top, CELL, CELL_HEIGHT, value[0], colour_of(palette, value))
            for offset, value in read
        ]
    last = max(txn.marker or 0 for txn in found.transactions)
    parts += [
        pen.words(x(offset) + CELL / 2, log - 8, str(offset), 14, palette.quiet, anchor="middle")
        for offset in range(last + 1)
    ]
    edge = x(found.stable) - GAP / 2
    parts += [
        pen.rule(edge, before - 8, edge, before + CELL_HEIGHT + 30, palette.edge),
        pen.words(
            edge + 10,
            before + CELL_HEIGHT + 28,
            f"last stable offset {found.stable}: readers stop here",
            17,
            palette.edge,
            weight=600,
        ),
    ]
    read = " ".join(value[0] for _, value in found.before), " ".join(value[0] for _, value in found.after)
    return pen.picture(
        HEIGHT,
        f"While B is open, readers stop at the last stable offset {found.stable} and get {read[0]}. After the commit of B "
        f"they get {read[1]}.",
        parts,
    )


assert LEFT + 11 * (CELL + GAP) <= WIDTH + GAP
