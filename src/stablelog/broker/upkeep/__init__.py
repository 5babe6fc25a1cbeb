"""Background work of the broker: periodic tasks, compaction, scrub (the check of all batches), and proofs of log files
(their check before the first read).
"""
