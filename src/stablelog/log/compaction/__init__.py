"""Compaction and the removal of aborted data: the rules that decide which records stay (`policy`, `aborted_data`), and
the rewriting of segments (`rewriter`). `cleaner` runs compaction, and replaces segments by the rewritten ones.
"""
