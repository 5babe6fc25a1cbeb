"""The client for asyncio programs: `stablelog.aio.connect`. It runs the steps of `client.core` in the event loop, over
asyncio's streams. It starts a thread only to look up a host name, to get a token or to load
certificates.
"""
