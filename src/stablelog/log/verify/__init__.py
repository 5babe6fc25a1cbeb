"""Verification of a partition: compares every file with the log, and writes nothing.

The directory of a running broker can be verified, too. Its files only grow, and a finding (something in a file that
contradicts the log) about the last segment concerns the bytes that were there when its size was read. An index file of
this segment may lack entries, because the broker writes it only from time to time; the newest snapshot records which
entries it must have.

Batches that retention has deleted cannot be read. For transactions that began before the log start offset, verification
relies on the snapshot there. If compaction has removed batches, an entry of the transaction index may have an earlier
first offset than the log shows; such an entry is no finding.

`directory` verifies a whole partition, `segment` the files of one segment, and `snapshots` the producer snapshots.
"""

from stablelog.log.verify.directory import verify_directory
from stablelog.log.verify.state import FileFinding

__all__ = ["FileFinding", "verify_directory"]
