"""Spark's source: it reads topics as rows."""
