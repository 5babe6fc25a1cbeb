"""Compaction: the rules that decide which records stay (`policy`), and the rewriting of segments (`cleaner`)."""
