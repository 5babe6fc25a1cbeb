"""Looking into a running or a stopped log."""
