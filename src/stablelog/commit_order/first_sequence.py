"""The file `log-start-sequence`, which records where the commit sequences of a commit-ordered log begin: the greatest
commit sequence (the number of a commit, counted over all topics of its transaction group) before the first segment.

A commit index that is rebuilt from the log does not know the commits in deleted segments. Without this file, the index
and its copy in the object store would name a too small commit sequence as the latest one before the log. A reader that
reads all commits up to a commit sequence would then not learn that retention has removed some of them.

The file is written before each deletion of segments. A crash may prevent the deletion, so the file has a row for the
present first segment, and one for each segment that may be the first one after an interrupted deletion.

Format: docs/reference/formats.md, "log-start-sequence".
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from stablelog.crc32c import crc32c
from stablelog.errors import DamageError

VERSION = 1
UNKNOWN: Final = -1  # there is no commit, or no file says which is the last one


class FirstSequence(NamedTuple):
    """Where the commit sequences of the log begin if a segment is its first one: after the greatest commit sequence
    before the segment. A commit sequence is the number of a commit, counted over all topics of its transaction group.

    Attributes:
        base_offset: the base offset of the segment.
        commit_sequence: the greatest commit sequence before it.
    """

    base_offset: int
    commit_sequence: int


def encode_first_sequences(rows: Sequence[FirstSequence]) -> bytes:
    """Return the content of the file `log-start-sequence`, in lines of text: the version, the number of rows, the rows,
    and a CRC. Each row has the base offset of a segment, and the greatest commit sequence (number of a commit, counted
    over all topics of its transaction group) before this segment.
    """
    lines = [f"{VERSION}", f"{len(rows)}", *(f"{row.base_offset} {row.commit_sequence}" for row in rows)]
    text = "".join(f"{line}\n" for line in lines).encode()
    return text + f"{crc32c(text):08x}\n".encode()


def decode_first_sequences(content: bytes) -> tuple[FirstSequence, ...]:
    """Decode the content of the file `log-start-sequence`. Return its rows in the order of the file; there is at least
    one. Each row has the base offset of a segment, and the greatest commit sequence (number of a commit, counted over
    all topics of its transaction group) before this segment: if the log begins at the segment, its commits begin after
    this number.

    Raises:
        DamageError: the file is damaged, or has another version.
    """
    pairs = [line.split(" ") for line in content.decode(errors="replace").split("\n")[2:-2]]
    if not all(len(pair) == 2 and all(map(str.isdecimal, pair)) for pair in pairs):
        pairs = []
    rows = tuple(FirstSequence(int(base), int(sequence)) for base, sequence in pairs)
    if not rows or content != encode_first_sequences(rows):
        raise DamageError(
            "the file `log-start-sequence` is damaged. The broker does not use the file, and writes "
            "a new one when it deletes a segment. The file must have a line with the version, "
            f"{VERSION}, the number of rows, a row with a base offset and the number of a commit for "
            "each of at least one segment, and the CRC of all lines"
        )
    return rows
