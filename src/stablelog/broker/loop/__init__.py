"""Work on the event loop: tasks with a scope, long work in turns, and short garbage collections."""
