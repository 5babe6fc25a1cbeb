"""Reading of segment files by Spark's driver and tasks, without the broker."""
