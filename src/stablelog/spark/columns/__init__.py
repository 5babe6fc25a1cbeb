"""Conversion of record batches into Arrow columns, and back."""
