"""The way of a member from its current assignment to its target assignment.

    STABLE ──────────▶ UNREVOKED ──────────▶ UNRELEASED ──────────▶ STABLE
            new target            revoked               others have
                                                        revoked

A member first revokes the partitions that it has to give away, and stays in its epoch until a heartbeat reports this.
Then it enters the epoch of the target assignment, with those of its new partitions that no other member owns. It gets
the rest when their owners have revoked them. So no partition ever has two owners. A step without any partition is
skipped.

Source: KIP-848, "Reconciliation".
"""

from collections.abc import Callable
from dataclasses import replace

from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    NO_PARTITIONS,
    CurrentAssignment,
    MemberState,
    Partitions,
    TopicIdPartition,
)


def next_assignment(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> CurrentAssignment:
    """Move a member one step towards its target assignment, and return its next current assignment.

    Args:
        current: the member's current assignment.
        target: the member's target assignment.
        target_epoch: the epoch of the target assignment.
        owned: the partitions that the member says it owns; None if its request does not contain them.
        is_free: returns whether no other member owns a partition.

    Returns:
        `current` itself if nothing changes.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED and _owns_any(owned, current.revoking):
        return current
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and _owns_any(owned, revoking):
        changed = replace(current, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
        return current if changed == current else changed
    given = frozenset(partition for partition in target - kept if is_free(partition))
    assigned = kept | given
    state = MemberState.STABLE if assigned == target else MemberState.UNRELEASED
    # The previous epoch stays if the epoch does: the member may have sent it because an answer was lost.
    previous_epoch = current.previous_epoch if current.epoch == target_epoch else current.epoch
    changed = CurrentAssignment(target_epoch, previous_epoch, state, assigned, NO_PARTITIONS)
    return current if changed == current else changed


def _owns_any(owned: Partitions | None, partitions: Partitions) -> bool:
    """Return whether the member owns any of the partitions. `owned` is what the member says it owns. None means that
    its request does not contain the partitions, because they are unchanged; the result is then True.
    """
    return owned is None or not owned.isdisjoint(partitions)
