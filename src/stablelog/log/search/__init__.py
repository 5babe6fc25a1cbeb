"""The searches in stored segments: for aborted transactions, for an offset, and for a time.

They read segments through the interfaces of `source`. So one search serves local log files, remote segments, Spark's
files and Spark's objects.
"""
