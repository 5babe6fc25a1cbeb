"""The client for programs with threads: `stablelog.connect`.

A call runs the steps of `client.core` in the calling thread, over blocking sockets, and returns when they have ended.
Spark's source and sink, the commands and the test tools use these classes, too.
"""
