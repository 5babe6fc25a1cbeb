"""What the broker keeps of fetches between requests: fetch sessions, and long polls that wait for records."""
