"""`cut`: transactions over two topics. A cut is between two commits everywhere; other ends of a read tear a transaction."""

from dataclasses import dataclass

from demo.pictures.pen import Palette, Pen
from demo.pictures.writers import Writers
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.commits import Commit, describe_commits
from stablelog.client.blocking.cuts import describe_cut

TOPICS = ("orders", "stock")
COUNTS = ((1, 1), (2, 1), (2, 2), (1, 1))  # Records of each transaction in each topic.
CUT_AT, LIMIT = 2, 4
LEFT, CELL, GAP, CELL_HEIGHT = 90, 108, 6, 44
ROW_TOPS = (84, 184)
HEIGHT = 300


@dataclass(frozen=True, slots=True)
class Found:
    """What the broker says.

    Attributes:
        commits: by topic, its transactions in the order of their commits.
        cut: by topic, the offset at the cut after commit CUT_AT.
    """

    commits: dict[str, tuple[Commit, ...]]
    cut: dict[str, int]


def play(writers: Writers) -> Found:
    """Commit four transactions, one after the other, each in both topics."""
    for topic in TOPICS:
        writers.create(topic, stablelog_order="commit")
    for counts in COUNTS:
        for topic, count in zip(TOPICS, counts, strict=True):
            writers.write("shop", topic, [b"record"] * count)
        writers.end("shop")
    with BlockingCluster(writers.broker.bootstrap) as cluster:
        commits = {topic: describe_commits(cluster, topic, 0).commits for topic in TOPICS}
        cut = describe_cut(cluster, TOPICS, CUT_AT)
    return Found(commits, {topic: cut.offsets[topic, 0] for topic in TOPICS})


def draw(palette: Palette, found: Found) -> str:
    """A row of records for each topic, and two lines through both rows."""
    pen = Pen(palette)

    def x(place: float) -> float:
        return LEFT + place * (CELL + GAP)

    parts = []
    edges = []
    for topic, top in zip(TOPICS, ROW_TOPS, strict=True):
        parts.append(pen.words(LEFT - 14, top + 29, topic, anchor="end", weight=600))
        records = [
            (offset, commit.commit_sequence)
            for commit in found.commits[topic]
            for offset in range(commit.start_offset, commit.end_offset)
        ]
        for place, (offset, number) in enumerate(records):
            colour = palette.transactions[number - 1]
            parts.append(pen.cell(x(place), top, CELL, CELL_HEIGHT, str(number), colour))
            parts.append(
                pen.words(x(place) + CELL / 2, top - 8, str(offset), 14, palette.quiet, anchor="middle")
            )
        edges.append(x(sum(offset < found.cut[topic] for offset, _ in records)) - GAP / 2)
    plain = x(LIMIT) - GAP / 2
    (first, second), (upper, lower) = edges, ROW_TOPS
    middle = (upper + CELL_HEIGHT + lower) / 2
    dash = "stroke-dasharray='6 4'"
    offsets = " and ".join(f"position {offset} of {topic}" for topic, offset in found.cut.items())
    steps = f"M{first:.1f},{upper - 30} V{middle - 10:.1f} L{second:.1f},{middle + 6:.1f} V{lower + CELL_HEIGHT + 22}"
    parts += [
        pen.rule(plain, upper - 22, plain, lower + CELL_HEIGHT + 14, palette.aborted, dash),
        f"<path d='{steps}' fill='none' stroke='{palette.edge}' stroke-width='4'/>",
        pen.words(LEFT, upper - 42, f"cut after commit {CUT_AT}: {offsets}", 17, palette.edge, weight=600),
        pen.words(
            LEFT,
            HEIGHT - 20,
            f"{LIMIT} records of each topic: a part of commit 3 is missing",
            17,
            palette.aborted,
            weight=600,
        ),
    ]
    return pen.picture(
        HEIGHT,
        f"Two topics with the same four commits. The cut after commit {CUT_AT} is at {offsets}. A read of {LIMIT} records of "
        "each topic ends inside commit 3.",
        parts,
    )
