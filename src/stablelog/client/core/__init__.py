"""The native client without I/O: what it asks of brokers, in which order, and what follows from each response.

The functions of this package that may have to wait are *steps*: generators that yield *effects* (`core.steps`). A shell
carries out each effect and sends its result back: `client.blocking.cluster` with blocking sockets, `client.aio` with asyncio.
Nothing here opens a socket, reads a clock, starts a thread or awaits.
"""
