"""Joint commits: several transactions that are committed together, once for each key and version."""
