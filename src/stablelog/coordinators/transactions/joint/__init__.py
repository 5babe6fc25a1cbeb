"""Joint commits: several transactions with one decision, made once for each key and version."""
