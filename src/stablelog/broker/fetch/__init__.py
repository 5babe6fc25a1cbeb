"""State of fetches between requests: fetch sessions, and fetches that wait for more records."""
