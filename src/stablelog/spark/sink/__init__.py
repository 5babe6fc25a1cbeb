"""Spark's sink: it writes rows in transactions."""
