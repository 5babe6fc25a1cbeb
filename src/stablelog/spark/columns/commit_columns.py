"""The columns of commits: `commitSequence`, `commitTimestamp` and `transactionGroup`.

A broker, or the commit indexes in an object store, list the offsets at which transactions begin and end in a
commit-ordered partition, whose readers get whole transactions in the order of their commits. This module finds each
decoded record's transaction in that list by the record's offset. A record outside transactions has null in the first
two columns.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stablelog.client.blocking.commits import Commits
from stablelog.errors import UnavailableError
from stablelog.spark.planning import Piece
from stablelog.spark.schema import OF_COMMITS
from stablelog.wire.extension.commits import COUNT_MAX

START, END, SEQUENCE, TIME = range(4)
MICROSECONDS: Final = pa.timestamp("us", tz="UTC")


def decoded_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns that the decoder has to make for a read of the columns `names`. The columns of
    commits, such as `commitSequence`, are not among them, because they are added later. If a column of commits is read,
    the result contains the column `offset`, by which the commit of a record is found.
    """
    decoded = tuple(name for name in names if name not in OF_COMMITS)
    return decoded if len(decoded) == len(names) or "offset" in decoded else (*decoded, "offset")


class CommitColumns:
    """Adds the columns of commits (commitSequence, commitTimestamp, transactionGroup) to the Arrow batches of one piece
    of a read, which is a range of offsets of one partition.

    Args:
        commits: a function that gets an offset, and returns the next transactions of the partition that end after it:
            COUNT_MAX of them, or all if there are fewer.
        group: the transaction group of the topic: the topics whose commits have one order.
        piece: the range of offsets that is read.
        names: the names of the wanted columns, in the order in which the result has them.
    """

    def __init__(
        self, commits: Callable[[int], Commits], group: str, piece: Piece, names: Sequence[str]
    ) -> None:
        self._commits = commits
        self._piece = piece
        self._names = tuple(names)
        self._listed: npt.NDArray[np.int64] = np.empty((0, 4), np.int64)
        self._reached = piece.start
        self._group = group

    def with_commits(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the wanted columns. Offsets must increase within the batch and from batch to batch.

        Raises:
            UnavailableError: the records were removed meanwhile, so their commits are unknown.
        """
        offsets = batch.column("offset").to_numpy()
        if len(offsets):
            self._list(int(offsets[0]), int(offsets[-1]) + 1)
        places = np.searchsorted(self._listed[:, START], offsets, side="right") - 1
        found = self._listed[places] if len(self._listed) else np.full((len(offsets), 4), -1, np.int64)
        outside = (places < 0) | (offsets >= found[:, END])
        makers: dict[str, Callable[[], Any]] = {
            "commitSequence": lambda: pa.array(found[:, SEQUENCE], pa.int64(), mask=outside),
            "commitTimestamp": lambda: pa.array(found[:, TIME] * 1000, pa.int64(), mask=outside).cast(
                MICROSECONDS
            ),
            "transactionGroup": lambda: pa.repeat(self._group, len(offsets)),
        }
        columns = [makers[name]() if name in makers else batch.column(name) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, names=list(self._names))

    def _list(self, start: int, end: int) -> None:
        """Request the list of the transactions with offsets from `start` to before `end`, and keep it in this object.
        Drop earlier transactions from the list, which are not needed any more.
        """
        parts = [self._listed[self._listed[:, END] > start]]
        while self._reached < end:
            found = self._commits(max(self._reached, start))
            if found.start_offset > start:
                raise UnavailableError(
                    f"{self._piece.topic}-{self._piece.partition} begins at offset {found.start_offset} now: offsets "
                    f"{start} to {min(found.start_offset, end) - 1} were removed while they were read, so the commits "
                    "of their records are unknown. Read from a later offset, or raise the topic's retention"
                )
            parts.append(np.array(found.commits, np.int64).reshape(-1, 4))
            is_all = len(found.commits) < COUNT_MAX
            self._reached = max(found.end_offset, end) if is_all else found.commits[-1].end_offset
        self._listed = np.concatenate(parts)
