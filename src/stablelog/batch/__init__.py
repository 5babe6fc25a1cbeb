"""Codec for record batches: encodes, decodes, checks and filters batches. The package does no I/O."""
