"""Work that does not block the event loop for long: background tasks, work in threads, long work in turns (slices,
between which other tasks run), and short garbage collections.
"""
