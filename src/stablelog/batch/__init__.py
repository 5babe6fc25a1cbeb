"""Codec for record batches. No I/O."""
