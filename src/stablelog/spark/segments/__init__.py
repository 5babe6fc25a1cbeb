"""Segment files, as Spark's driver and tasks read them."""
