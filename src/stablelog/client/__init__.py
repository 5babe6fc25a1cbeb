"""The native client: `stablelog.connect` and `stablelog.aio.connect`.

`core` decides what is sent and what a response means, without I/O. `blocking` carries this out over blocking sockets,
and `aio` in an event loop. The other modules are shared by these two. Spark's source and sink and the commands use
`blocking`.
"""
