"""Work on the event loop: background tasks, long work that is done in slices, and short garbage collections."""
