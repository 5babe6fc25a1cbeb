"""Spark's way in: the only room that knows PySpark."""
