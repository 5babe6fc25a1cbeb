"""Commit order: what read-committed consumers of a commit-ordered topic read.

`view` presents the log of an open partition in commit order, `stored_view` a log that is read from the object store
alone. Both find transactions in the commit index of each segment (`commit_index`).
"""
