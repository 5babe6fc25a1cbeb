"""Transaction coordinator: producers, their epochs, and the outcome of their transactions."""
