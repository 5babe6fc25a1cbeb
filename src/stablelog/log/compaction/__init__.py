"""Compaction of sealed segments, and the removal of aborted data (the batches of aborted transactions) from them.

`policy` and `aborted_data` decide which records stay. `rewriter` writes new segments. `cleaner` runs compaction, and
puts the new segments in place of the old ones.
"""
