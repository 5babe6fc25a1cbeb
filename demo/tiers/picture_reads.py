"""The lower part of the picture: the bytes that each reader read from each tier, and its requests beside Kafka's."""

import textwrap
from collections import Counter

from demo.svg import BAD, GOOD, INK, QUIET, badge, box, line, text
from demo.tiers.results import KAFKA_INDEXES, Read, Results
from demo.tiers.store import GET_INDEXES, GET_LOG, KINDS

LEFT, LEFT_END, MIDDLE, RIGHT = 90, 480, 520, 970
ROWS_TOP, ROW_HEIGHT, FOOTER_HEIGHT = 62, 118, 150  # the rows begin below three lines of headings
BYTES_HEIGHT, REQUESTS_HEIGHT = 16, 14
REQUESTS_LEFT, LABEL_WIDTH = 660, 116
SMALL, LARGE = 14, 17
LINE_LENGTH = 118
MB = 1_000_000
BADGE = "#4b5563"
DISK, STORE = "#e9a23b", "#3f78b5"
LOG, INDEXES, OTHER = "log files", "indexes", "other"
OURS = {LOG: "#3f78b5", INDEXES: "#1b3a5c", OTHER: "#9db8d6"}
# What is computed has a dashed edge, so that it does not look like what was counted.
KAFKAS = {LOG: "#f1f2f4", INDEXES: "#d5d9e0", OTHER: "#f1f2f4"}
EDGE = "stroke='#7b8494' stroke-dasharray='3 2'"
NOTES = (
    "* The bars of Kafka are computed from the code of Apache Kafka 4.2, not measured: at least one request for the log file "
    f"of each segment that is read from the store, and {KAFKA_INDEXES} for its indexes (offset, time and transaction index), "
    "also if it has no aborted transaction. stablelog requests the indexes of segments with aborted transactions. It loads "
    "log files ahead of a consumer, some of which the disk also has."
)


def reads_height(results: Results) -> float:
    """Return the height of this part of the picture."""
    return ROWS_TOP + ROW_HEIGHT * len(results.reads) + FOOTER_HEIGHT


def draw_reads(results: Results, top: float) -> list[str]:
    """Return a row for each reader, and below them the requests of the whole scene."""
    largest = max([read.local_size + read.store_size for read in results.reads] + [1])
    totals = [(read.requests.total(), read.kafka_requests.total()) for read in results.reads]
    most = max(1, *(max(pair) for pair in totals))
    parts = [
        text(LEFT, top, "What each reader read, and from where", LARGE, weight=600),
        text(LEFT, top + 22, "Each has to find the flights that were there at its time.", SMALL, QUIET),
        *_square(LEFT, top + 46, DISK, "the disk of the broker"),
        *_square(LEFT + 190, top + 46, STORE, "the store"),
        text(MIDDLE, top, "Requests to the store for these reads", LARGE, weight=600),
        text(MIDDLE, top + 22, "stablelog's are counted, Kafka's are computed *", SMALL, QUIET),
        *_square(MIDDLE, top + 46, OURS[LOG], LOG, KAFKAS[LOG]),
        *_square(MIDDLE + 120, top + 46, OURS[INDEXES], INDEXES, KAFKAS[INDEXES]),
        *_square(MIDDLE + 232, top + 46, OURS[OTHER], "other (LIST, PUT, ...)"),
    ]
    for number, read in enumerate(results.reads):
        y = top + ROWS_TOP + number * ROW_HEIGHT
        parts += [line(LEFT, y, RIGHT, y), *_bytes(read, y, largest), *_requests(read, y, most)]
    return [*parts, *_footer(results, top + ROWS_TOP + len(results.reads) * ROW_HEIGHT)]


def _square(x: float, y: float, colour: str, label: str, second: str | None = None) -> list[str]:
    """Return what a colour means, or two colours."""
    squares = [box(x, y - 10, 12, 10, colour, "rx='2'")]
    if second is not None:
        squares.append(box(x + 15, y - 10, 12, 10, second, EDGE))
    return [*squares, text(x + 4 + 15 * len(squares), y, label, SMALL)]


def _bytes(read: Read, y: float, largest: int) -> list[str]:
    verdict = read.verdict
    colour = GOOD if verdict.is_good else BAD
    # "0 lost" without what it counts would contradict the reads that come before the last flights are written.
    whole = "all" if verdict.is_good else f"{verdict.read_count:,} read of"
    found = f"{whole} {read.expected_count:,} flights {read.scope}"
    parts = [
        badge(LEFT, y + 10, 18, 18, str(read.phase), BADGE),
        text(LEFT + 26, y + 24, read.name, 14, weight=600),
        text(LEFT, y + 48, found, SMALL, colour, weight=600),
        text(LEFT, y + 68, f"of these {verdict}", SMALL, colour),
    ]
    left = float(LEFT)
    for size, fill in ((read.local_size, DISK), (read.store_size, STORE)):
        width = size / largest * (LEFT_END - LEFT)
        parts.append(box(left, y + 76, width, BYTES_HEIGHT, fill))
        left += width
    sizes = ((read.local_size, "disk"), (read.store_size, "store"))
    said = [f"{size / MB:,.1f} MB from the {where}" for size, where in sizes if size >= MB / 20]
    return [*parts, text(LEFT, y + 108, ", ".join(said), SMALL, QUIET)]


def _requests(read: Read, y: float, most: int) -> list[str]:
    parts = []
    rows = (
        ("stablelog", read.requests, OURS, INK, ""),
        ("Kafka, computed *", read.kafka_requests, KAFKAS, QUIET, EDGE),
    )
    for number, (name, requests, colours, ink, edge) in enumerate(rows):
        counts, at = _by_part(requests), y + 34 + number * (REQUESTS_HEIGHT + 20)
        parts.append(text(REQUESTS_LEFT - 10, at + 12, name, SMALL, ink, anchor="end"))
        left = float(REQUESTS_LEFT)
        for part, colour in colours.items():
            width = counts[part] / most * (RIGHT - REQUESTS_LEFT - LABEL_WIDTH)
            if width:
                parts.append(box(left, at, width, REQUESTS_HEIGHT, colour, edge))
            left += width
        label = " + ".join(f"{counts[part]:,}" for part in colours if counts[part])
        parts.append(text(left + 7, at + 12, label or "0", SMALL, ink))
    return parts


def _by_part(requests: Counter[str]) -> dict[str, int]:
    log, indexes = requests[GET_LOG], requests[GET_INDEXES]
    return {LOG: log, INDEXES: indexes, OTHER: requests.total() - log - indexes}


def _footer(results: Results, y: float) -> list[str]:
    counted = " · ".join(f"{kind} {results.requests[kind]:,}" for kind in KINDS)
    said = f"All requests of the scene, as its store counted them, {results.delay_ms:g} ms each: "
    notes = [
        text(LEFT, y + 74 + 19 * number, words, SMALL - 1, QUIET)
        for number, words in enumerate(textwrap.wrap(NOTES, LINE_LENGTH))
    ]
    return [
        line(LEFT, y, RIGHT, y),
        text(LEFT, y + 24, said, SMALL),
        text(LEFT, y + 44, counted, SMALL),
        *notes,
    ]
