"""The leader epochs of a partition, each with the offset of its first record.

Format: docs/reference/formats.md, "leader-epoch-checkpoint".  Source: KIP-101, KIP-320.
"""

from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter

from stablelog.errors import DamageError, refuse_unknown_version

EPOCH_FILE = "leader-epoch-checkpoint"
UNKNOWN = -1
VERSION = 0


class LeaderEpochs:
    """The leader epochs of one partition, as (epoch, offset of its first record). Both numbers grow from entry to
    entry.
    """

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self.entries = entries or []

    @property
    def latest(self) -> int:
        """The latest leader epoch; -1 if the log has no batch."""
        return self.entries[-1][0] if self.entries else UNKNOWN

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Record that the batches from `start_offset` on have this leader epoch. An epoch that is not greater than the
        latest one changes nothing.
        """
        if epoch > self.latest:
            while self.entries and self.entries[-1][1] >= start_offset:
                self.entries.pop()  # this earlier epoch has no record in the log
            self.entries.append((epoch, start_offset))

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of the record at an offset; -1 if it is unknown."""
        count = bisect_right(self.entries, offset, key=itemgetter(1))
        return self.entries[count - 1][0] if count else UNKNOWN

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Find where a leader epoch ends, as OffsetsForLeaderEpoch reports it.

        Args:
            epoch: the leader epoch.
            log_end_offset: the end of the log, at which the latest epoch ends.

        Returns:
            Two values: the greatest known epoch up to `epoch`, and its end offset, exclusive. If all known epochs are
            later, `epoch` itself, and the offset at which the first known epoch begins. (-1, -1) if `epoch` is negative
            or greater than all known epochs, or if no epoch is known.
        """
        if not self.entries or epoch > self.latest or epoch < 0:
            return UNKNOWN, UNKNOWN
        if epoch == self.latest:
            return epoch, log_end_offset
        count = bisect_right(self.entries, epoch, key=itemgetter(0))
        return self.entries[count - 1][0] if count else epoch, self.entries[count][1]

    def truncate_to(self, end_offset: int) -> None:
        """Drop the epochs that begin at or after the new end of the log."""
        self.entries = [(epoch, start) for epoch, start in self.entries if start < end_offset]

    def encode(self) -> bytes:
        """Encode the content of a `leader-epoch-checkpoint` file."""
        rows = [f"{epoch} {start}" for epoch, start in self.entries]
        return "\n".join(["0", str(len(rows)), *rows, ""]).encode()

    @classmethod
    def decode(cls, content: bytes) -> "LeaderEpochs":
        """Decode the content of a `leader-epoch-checkpoint` file.

        Raises:
            UnknownFormatError: a later release has written the file.
            DamageError: the content is not in Kafka's format.
        """
        lines = content.decode(errors="replace").splitlines()
        try:
            refuse_unknown_version("a leader epoch checkpoint", int(lines[0]), VERSION)
            if lines[0] != "0":
                raise ValueError(f"the version of the file is {lines[0]}, not 0")
            rows = [line.split(" ") for line in lines[2 : 2 + int(lines[1])]]
            if len(rows) != int(lines[1]):
                raise ValueError("the file has fewer lines than its second line says")
            entries = [(int(epoch), int(start)) for epoch, start in rows]
            if any(one[0] >= two[0] or one[1] >= two[1] for one, two in pairwise(entries)):
                raise ValueError("the epochs and offsets do not grow from line to line")
            return cls(entries)
        except (ValueError, IndexError) as error:
            raise DamageError(f"the content is not a leader epoch checkpoint: {error}") from error
