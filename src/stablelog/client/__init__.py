"""The native client: `stablelog.connect` and `stablelog.aio.connect`.

`core` has the rules without I/O. `blocking` and `aio` run them over blocking sockets and in an event loop. The other
modules are what these two share. Spark's source and sink and the commands use `blocking`.
"""
