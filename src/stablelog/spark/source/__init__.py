"""Spark's source: reads topics as rows."""
