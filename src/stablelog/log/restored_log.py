"""The check that a log is the one that a restore from the object store has made. It is needed if the partition's own
file about the restore is missing.
"""

from stablelog.log.files.restored import Restored
from stablelog.log.open_log import OpenLog


def is_restored_log(log: OpenLog, restored: Restored) -> bool:
    """Whether a log is the one that a restore from the object store has made, as `restored` describes the restore: it
    has a batch without records at the offsets whose records were lost. If the log begins after these offsets, its
    leader epochs show whether it is the restored log.

    Raises:
        DamageError: the log file of the batch is damaged.
    """
    if not restored.ranges:
        return False
    start, segments = restored.ranges[-1][0], log.log.segments
    if log.log.epochs.epoch_of(start) != restored.leader_epoch or start >= log.end_offset:
        return False
    if start < log.start_offset:
        return True
    header = segments[segments.place_of(start)].header_at(start)
    return header is not None and header.base_offset <= start and not header.record_count
