"""Compaction: the rules which records of a log stay (`policy`), and the rewriting of segments (`cleaner`)."""
