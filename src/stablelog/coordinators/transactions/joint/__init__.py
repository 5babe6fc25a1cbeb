"""Several transactions decided as one, once for each key and version."""
