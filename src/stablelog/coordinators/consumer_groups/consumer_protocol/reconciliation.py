"""The way of a member from its current assignment to its target assignment.

    STABLE ──────────▶ UNREVOKED ──────────▶ UNRELEASED ──────────▶ STABLE
            new target            revoked               others have
                                                        revoked

A member first revokes what it has to give away, and stays in its epoch until it has told so. Then it enters the target
epoch, with those of its partitions that no other member owns. It gets the rest when their owners have revoked them. So
no partition has two owners at any time. A step that has nothing to do is left out.

Source: KIP-848, "Reconciliation".
"""

from collections.abc import Callable
from dataclasses import replace

from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    NO_PARTITIONS,
    Current,
    MemberState,
    Partitions,
    TopicIdPartition,
)


def reconciled(
    current: Current,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> Current:
    """Return the next state of a member; the same object if nothing changes.

    Args:
        current: the present state.
        target: the member's target assignment.
        target_epoch: the epoch of the target assignment.
        owned: the partitions that the member says it owns; None if it says nothing.
        is_free: whether no other member owns a partition.
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
    changed = Current(target_epoch, previous_epoch, state, assigned, NO_PARTITIONS)
    return current if changed == current else changed


def _owns_any(owned: Partitions | None, partitions: Partitions) -> bool:
    """Whether the member owns any of the partitions. A member that says nothing owns what it owned before."""
    return owned is None or not owned.isdisjoint(partitions)
