"""The client for asyncio programs: `stablelog.aio.connect`. `client.core` decides what is sent and received; this
package sends and receives it in the event loop, over streams of asyncio. Threads are used only to look up host names,
to get tokens and to load certificates.
"""
