"""`commit-order`: the same story in a commit-ordered topic. Readers get each transaction at its commit, in one piece."""

from dataclasses import dataclass

from demo.pictures.open_transaction import colour_of
from demo.pictures.pen import WIDTH, Palette, Pen
from demo.pictures.story import TOPIC, begin
from demo.pictures.writers import Txn, Writers

LEFT, CELL, GAP, CELL_HEIGHT = 24, 40, 4, 38
LOG_TOP, READ_TOP = 66, 196
HEIGHT = 300


@dataclass(frozen=True, slots=True)
class Found:
    """What is stored and read.

    Attributes:
        transactions: those of the partition.
        before: what a reader gets while B is open.
        after: what a reader gets when B has committed.
        sequences: by the name of a transaction, the number of its commit.
    """

    transactions: list[Txn]
    before: list[tuple[int, str]]
    after: list[tuple[int, str]]
    sequences: dict[str, int]


def play(writers: Writers) -> Found:
    """Read before the commit of B, and after it."""
    begin(writers, stablelog_order="commit")
    before = writers.read(TOPIC)
    writers.end("B")
    sequences = {
        (found.records[0].value or b"").decode()[0]: found.commit_sequence
        for found in writers.client.read([TOPIC], wait=0)
    }
    return Found(writers.transactions(TOPIC), before, writers.read(TOPIC), sequences)


def draw(palette: Palette, found: Found) -> str:
    """The log above; below it the records where readers get them, joined with where they were written."""
    pen = Pen(palette)

    def x(offset: float) -> float:
        return LEFT + offset * (CELL + GAP)

    positions = {value: offset for offset, value in found.after}
    parts = [
        pen.words(LEFT, LOG_TOP - 32, "The partition as it was written", weight=600),
        pen.words(
            LEFT,
            HEIGHT - 16,
            "What readers get: whole transactions, in the order of their commits",
            weight=600,
        ),
    ]
    boxes = []
    for txn in found.transactions:
        colour = colour_of(palette, txn.writer)
        for number, offset in enumerate(txn.offsets, 1):
            boxes.append(pen.cell(x(offset), LOG_TOP, CELL, CELL_HEIGHT, txn.writer, colour))
            position = positions.get(f"{txn.writer}{number}")
            if position is not None:
                parts.append(_band(x(offset), x(position), colour))
                boxes.append(pen.cell(x(position), READ_TOP, CELL, CELL_HEIGHT, txn.writer, colour))
                boxes.append(_number(pen, x(position), READ_TOP + CELL_HEIGHT + 18, position))
            boxes.append(_number(pen, x(offset), LOG_TOP - 8, offset))
        if txn.marker is not None:
            count = len(txn.offsets) if txn.is_committed else 0
            width = (count + 1) * (CELL + GAP) - GAP
            label = f"commit {found.sequences[txn.writer]}" if txn.is_committed else "✕"
            boxes.append(pen.outlined(x(txn.marker), LOG_TOP, width, CELL_HEIGHT, label, colour))
            boxes.append(_number(pen, x(txn.marker), LOG_TOP - 8, txn.marker))
    read = " ".join(value[0] for _, value in found.before), " ".join(value[0] for _, value in found.after)
    return pen.picture(
        HEIGHT,
        f"In a commit-ordered topic readers get {read[0]} while B is open, and {read[1]} after the commit of B.",
        [*parts, *boxes],
    )


def _number(pen: Pen, left: float, y: float, offset: int) -> str:
    return pen.words(left + CELL / 2, y, str(offset), 14, pen.palette.quiet, anchor="middle")


def _band(written: float, read: float, colour: str) -> str:
    top, bottom, middle = LOG_TOP + CELL_HEIGHT, READ_TOP, (LOG_TOP + CELL_HEIGHT + READ_TOP) / 2
    first, last = written + CELL / 2, read + CELL / 2
    return (
        f"<path d='M{first:.1f},{top} C{first:.1f},{middle} {last:.1f},{middle} {last:.1f},{bottom}' fill='none' "
        f"stroke='{colour}' stroke-width='3' opacity='0.6'/>"
    )


assert LEFT + 17 * (CELL + GAP) <= WIDTH + GAP
