"""Commit order: the order in which read-committed consumers of a commit-ordered topic get transactions.

The view of a partition is its log as such consumers read it. `view` reads the log of an open partition in commit order;
`stored_view` does so for a log that is only in an object store. Both find transactions in the commit index of each
segment (`commit_index`).
"""
