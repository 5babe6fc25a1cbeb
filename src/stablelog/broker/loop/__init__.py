"""Work on the event loop: background tasks, work in threads, long work in turns, and short garbage collections."""
