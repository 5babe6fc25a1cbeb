"""Spark's sink: writes rows in transactions."""
