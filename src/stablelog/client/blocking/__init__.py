"""The client for programs with threads: `stablelog.connect`.

`client.core` decides what a call sends and receives; this package sends and receives it in the calling thread, over
blocking sockets. Spark's source and sink, the commands and the test tools use these classes, too.
"""
