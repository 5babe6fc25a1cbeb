"""Topics and their partitions: created, opened, changed and deleted."""
