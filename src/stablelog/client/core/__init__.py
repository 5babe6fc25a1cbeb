"""The rules of the native client, without I/O: which requests it sends, in which order, and what follows from each
response.

The functions of this package that may have to wait are *steps*: generators that yield *effects* (`core.steps`), such as
"send these bytes". The code that runs the steps (the *shell*) carries out each effect and sends its result back into
the generator: `client.blocking` with blocking sockets, `client.aio` with asyncio. Nothing here opens a socket, reads a
clock, starts a thread or awaits.
"""
