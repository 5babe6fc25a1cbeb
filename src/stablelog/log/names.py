"""The names of a partition's files: an offset in 20 digits, and a suffix that says what the file is.

Format: docs/formats.md, "The data directory".
"""

LOG, INDEX, TIMEINDEX, TXNINDEX, SUMMARY = ".log", ".index", ".timeindex", ".txnindex", ".summary"
INDEX_SUFFIXES = (INDEX, TIMEINDEX, TXNINDEX)
COMMIT_SUFFIXES = (
    ".commitindex",
    ".commitextents",
    ".commitsummary",
)  # of the view in commit order; see `views`
SEGMENT_SUFFIXES = (LOG, INDEX, TIMEINDEX, TXNINDEX, SUMMARY, *COMMIT_SUFFIXES)
SNAPSHOT, PRODUCERS = ".snapshot", ".producers"
CUT = ".cut"  # what recovery or `stablelog repair` cut off the segment's log file
DELETED = ".deleted"


def is_snapshot(name: str) -> bool:
    """Whether a file of this name holds producer state."""
    return name.endswith((SNAPSHOT, PRODUCERS)) and name.partition(".")[0].isdigit()


def is_log(name: str) -> bool:
    """Whether a file of this name is a segment's log."""
    return name.endswith(LOG) and name[: -len(LOG)].isdigit()


def offset_of(name: str) -> int:
    """The offset that a file is named by."""
    return int(name.partition(".")[0])
