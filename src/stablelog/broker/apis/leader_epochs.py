"""The check that the leader epoch in a request is that of the partition (KIP-320): with another epoch, the client's
metadata are old, or the broker was restored from older data.
"""

from kio.schema.errors import ErrorCode

from stablelog.errors import RefusedError
from stablelog.log.partition import Partition

UNKNOWN = -1


def check_leader_epoch(partition: Partition, client_epoch: int) -> None:
    """Refuse a request whose leader epoch is not that of the partition.

    Raises:
        RefusedError: fenced_leader_epoch for an older epoch, unknown_leader_epoch for a newer one.
    """
    if client_epoch in (UNKNOWN, partition.leader_epoch):
        return
    if client_epoch < partition.leader_epoch:
        code = ErrorCode.fenced_leader_epoch
    else:
        code = ErrorCode.unknown_leader_epoch
    raise RefusedError(
        code,
        f"the request has leader epoch {client_epoch}, and the partition's leader epoch is "
        f"{partition.leader_epoch}: fetch new metadata",
    )
