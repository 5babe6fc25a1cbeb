"""The commit sequences of one transaction group: each commit gets the next number, and there are no gaps."""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.wire.extension.transaction_groups import group_in_words

FIRST_SEQUENCE: Final = 1  # The first commit sequence is 1, so that 0 stands for "before the first commit".


class CommitSequences:
    """Hands out the commit sequences of one transaction group.

    Args:
        group: the transaction group.

    Attributes:
        next: the commit sequence of the next commit.
        are_known: False while partitions may contain commit sequences that are missing in the commit log. While it is
            False, no commit is decided.
        take_count: the number of commit sequences that were taken since the broker's start.
    """

    def __init__(self, group: str) -> None:
        self.next = FIRST_SEQUENCE
        self.are_known = True
        self.take_count = 0
        self._group = group
        self._held: int | None = None  # The commit sequence of the held commit.

    @property
    def last(self) -> int:
        """The commit sequence of the last decided commit; 0 before the first."""
        return self.next - 1

    @property
    def first_undecided(self) -> int:
        """The least commit sequence whose decisions are not all made: that of a held commit, or of the next one."""
        return self.next if self._held is None else self._held

    def check(self) -> None:
        """Refuse a commit while another commit may already have the next commit sequence, and while a commit is held.

        Raises:
            RefusedError: coordinator_load_in_progress.
        """
        if not self.are_known:
            raise RefusedError(
                ErrorCode.coordinator_load_in_progress,
                f"the broker is reading the last commits in the partitions of {group_in_words(self._group)} after a start; try again",
            )
        if self._held is not None:
            raise RefusedError(
                ErrorCode.coordinator_load_in_progress,
                f"a joint commit of many transactions of {group_in_words(self._group)} is being decided; try again",
            )

    def take(self) -> int:
        """Take the next commit sequence.

        The caller must then decide the commit, because commit sequences have no gaps.
        """
        assert self.are_known
        assert self._held is None
        self.take_count += 1
        self.next += 1
        return self.last

    def hold(self) -> None:
        """Note that later decisions use the last commit sequence, too. Until `release`, no other commit is decided."""
        assert self._held is None
        assert self.last >= FIRST_SEQUENCE
        self._held = self.last

    def release(self) -> None:
        """Note that all decisions of the held commit are made."""
        assert self._held is not None
        self._held = None

    def skip_past(self, sequence: int) -> None:
        """Note that a commit has this commit sequence: the next commit gets a greater one."""
        self.next = max(self.next, sequence + 1)

    def met(self, sequence: int) -> bool:
        """Note that a marker in a partition has this commit sequence: the next commit gets a greater one.

        Returns:
            Whether the commit log does not contain this commit, because the log has lost its end, or is an older copy
            than the partition.
        """
        is_new = sequence >= self.next
        self.skip_past(sequence)
        return is_new
