"""The client for asyncio programs: `stablelog.aio.connect`. It runs the steps of `client.core` in the event loop, over
asyncio's streams, and starts no thread.
"""
