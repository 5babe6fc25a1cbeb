"""Verification: proves every file of a partition from its log, and writes nothing.

A directory whose broker runs can be verified too. Its files only grow, and a finding about the last segment concerns
the bytes that the segment held when its size was read. An index of that segment may be behind the log, because the
broker writes it from time to time. The newest snapshot says how far the index has to reach.

What retention has deleted cannot be read: transactions that began before the log's start are taken from the snapshot
there. Where compaction has removed batches, an entry may name an earlier beginning than the log shows.

`directory` goes over the partition, `segment` proves the files of one segment, and `snapshots` proves the snapshots.
"""

from stablelog.log.verify.directory import verify_directory
from stablelog.log.verify.state import Finding

__all__ = ["Finding", "verify_directory"]
