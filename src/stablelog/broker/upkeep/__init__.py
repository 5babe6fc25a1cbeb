"""Work in the background: periodic tasks, compaction, scrub, and proofs of log files."""
