"""The native client: `stablelog.connect` and `stablelog.aio.connect`.

The package `core` decides what is sent and what a response means, without I/O. The package `blocking` does the I/O over
blocking sockets, and `aio` does it in an event loop. The other modules are shared by these two. Spark's source and sink
and the commands use `blocking`.
"""
