"""The searches in stored segments: for aborted transactions, for an offset and for a time. They read through the
interfaces of `source`, so that one search serves log files, remote segments, Spark's files and Spark's objects.
"""
