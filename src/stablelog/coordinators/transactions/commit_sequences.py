"""Commit sequences of one transaction group: the number of each commit, in the order of the commits, without gaps."""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.wire.extension.transaction_groups import group_in_words

FIRST_SEQUENCE: Final = 1  # The first commit sequence is 1, so that 0 stands for "before the first commit".


class CommitSequences:
    """The commit sequences of one transaction group.

    A joint commit of many transactions takes several decisions with the same commit sequence. Between the first and the
    last of these decisions the commit is *held*, and no other transaction of the group can be committed.

    Args:
        group: the transaction group.

    Attributes:
        next: the commit sequence of the next commit.
        are_known: False after a start while partitions may contain commit sequences that the commit log lacks. No
            transaction can be committed then.
        assigned_count: the number of commit sequences that were assigned since the broker's start.
    """

    def __init__(self, group: str) -> None:
        self.next = FIRST_SEQUENCE
        self.are_known = True
        self.assigned_count = 0
        self._group = group
        self._held: int | None = None  # The commit sequence of the held commit.

    @property
    def last(self) -> int:
        """The commit sequence of the last decided commit; 0 if the group has no commit yet."""
        return self.next - 1

    @property
    def first_undecided(self) -> int:
        """The lowest commit sequence that still needs a decision: that of the held joint commit (some of its decisions
        are still to be made), otherwise that of the next commit.
        """
        return self.next if self._held is None else self._held

    def check_commit_allowed(self) -> None:
        """Check that a transaction of the group can be committed now.

        Raises:
            RefusedError: after a start, the next commit sequence is not known yet; or a joint commit of many
                transactions is being decided. The error code is coordinator_load_in_progress, after which the client
                retries.
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

    def assign_next(self) -> int:
        """Return the next commit sequence, and advance to the one after it.

        The caller must decide the commit at once, because commit sequences have no gaps.
        """
        assert self.are_known
        assert self._held is None
        self.assigned_count += 1
        self.next += 1
        return self.last

    def hold_last(self) -> None:
        """Hold the last assigned commit: further decisions will use its commit sequence.

        No other transaction of the group can be committed until `release_held`.
        """
        assert self._held is None
        assert self.last >= FIRST_SEQUENCE
        self._held = self.last

    def release_held(self) -> None:
        """End the hold of a commit: all its decisions are made, and other transactions can be committed again."""
        assert self._held is not None
        self._held = None

    def skip_past(self, sequence: int) -> None:
        """Make sure that the next commit gets a commit sequence above `sequence`, because `sequence` is in use."""
        self.next = max(self.next, sequence + 1)

    def observe_marker(self, sequence: int) -> bool:
        """Record the commit sequence of a commit marker that a partition contains: the next commit gets a greater one.

        Returns:
            Whether the commit log lacks this commit. The commit log has then lost its end, or is an older copy than the
            partition.
        """
        is_new = sequence >= self.next
        self.skip_past(sequence)
        return is_new
