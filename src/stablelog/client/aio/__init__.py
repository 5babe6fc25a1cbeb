"""The client for asyncio programs: `stablelog.aio.connect`. It runs the steps of `client.core` in the event loop, over
streams of asyncio. Threads are used only to look up host names, to get tokens and to load certificates.
"""
