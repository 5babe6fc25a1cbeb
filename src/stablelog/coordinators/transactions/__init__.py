"""Who decides transactions: producers, their epochs, and what becomes of what they have written."""
