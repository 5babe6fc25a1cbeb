"""Background work of the broker: periodic tasks, compaction, scrub, and proofs of log files."""
