"""Verification: compares every file of a partition with its log, and writes nothing.

A directory with a running broker can be verified, too. Its files only grow, and a finding about the last segment
concerns the bytes that the segment held when its size was read. An index file of this segment may lack entries, because
the broker writes it only from time to time. The newest snapshot records which entries the index file must have.

Verification cannot read what retention has deleted. It takes transactions that began before the log start offset from
the snapshot there. If compaction has removed batches, an entry of the transaction index may have an earlier first
offset than the log shows. Such an entry is no finding.

`directory` verifies a whole partition, `segment` verifies the files of one segment, and `snapshots` verifies the
snapshots.
"""

from stablelog.log.verify.directory import verify_directory
from stablelog.log.verify.state import Finding

__all__ = ["Finding", "verify_directory"]
