"""Commit sequences: the numbers of the commits of one transaction group (topics whose commits have one order).

They follow the order of the commits, and have no gaps.
"""

from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.wire.extension.transaction_groups import group_in_words

FIRST_SEQUENCE: Final = 1  # The first commit sequence is 1, so that 0 stands for "before the first commit".


class CommitSequences:
    """The commit sequences of one transaction group (topics whose commits have one order): the numbers of these
    commits.

    A joint commit commits the transactions of several producers together. If there are many, it takes several decisions
    with the same commit sequence. Between the first and the last of these decisions the commit is *held*, and no other
    transaction of the group can be committed.

    Args:
        group: the name of the transaction group.

    Attributes:
        next: the commit sequence of the next commit.
        are_known: whether the next commit sequence is certain. It is False after a start of the broker, as long as a
            partition that is not open yet may contain a commit sequence that the commit log has lost. Until it is True,
            no transaction can be committed.
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
        """The commit sequence (number) of the last commit of the group that is decided; 0 if the group has no commit
        yet.
        """
        return self.next - 1

    @property
    def first_undecided(self) -> int:
        """The lowest commit sequence (number of a commit in its transaction group, which is topics with one order of
        commits) that still needs a decision. If a joint commit of many transactions is held, so that some of its
        decisions are still to be made, it is the number of this commit; otherwise it is that of the next commit.
        """
        return self.next if self._held is None else self._held

    def check_commit_allowed(self) -> None:
        """Check that a transaction of the transaction group (topics whose commits have one order) can be committed now.

        Raises:
            RefusedError: after a start of the broker, the number of the next commit is not known yet; or a joint commit
                of many transactions is being decided. The error code is coordinator_load_in_progress, after which the
                client retries.
        """
        if not self.are_known:
            raise RefusedError(
                ErrorCode.coordinator_load_in_progress,
                f"transactions of {group_in_words(self._group)} cannot be committed yet: after a start, "
                "the broker is still reading the last commits in the group's partitions. Try again",
            )
        if self._held is not None:
            raise RefusedError(
                ErrorCode.coordinator_load_in_progress,
                f"transactions of {group_in_words(self._group)} cannot be committed now: the broker is "
                "deciding a joint commit of many transactions. Try again",
            )

    def assign_next(self) -> int:
        """Return the commit sequence (number) of the next commit of the group, and advance to the one after it.

        The caller must decide the commit at once: a number that was assigned and is not used would leave a gap.
        """
        assert self.are_known
        assert self._held is None
        self.assigned_count += 1
        self.next += 1
        return self.last

    def hold_last(self) -> None:
        """Hold the commit whose number was assigned last: a joint commit of so many transactions that it takes several
        decisions. All of these decisions use the same commit sequence (number of the commit).

        Until `release_held`, only these decisions may commit transactions of the group: no other commit gets a number.
        """
        assert self._held is None
        assert self.last >= FIRST_SEQUENCE
        self._held = self.last

    def release_held(self) -> None:
        """Release the held commit, a joint commit of many transactions that took several decisions: all of them are
        made. Other transactions can be committed again.
        """
        assert self._held is not None
        self._held = None

    def skip_past(self, sequence: int) -> None:
        """Make sure that the next commit gets a number above `sequence`, because an earlier commit has this number."""
        self.next = max(self.next, sequence + 1)

    def observe_marker(self, sequence: int) -> bool:
        """Record the commit sequence (number of the commit) in a commit marker that a partition contains: the next
        commit gets a greater one.

        Returns:
            Whether the commit log lacks this commit. The commit log has then lost its end, or is an older copy than the
            partition.
        """
        is_new = sequence >= self.next
        self.skip_past(sequence)
        return is_new
