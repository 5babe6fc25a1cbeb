"""Views: the log of a partition in another order than the order of the writes. There is one: commit order."""
