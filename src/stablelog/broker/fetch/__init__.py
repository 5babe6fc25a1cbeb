"""What the broker keeps of fetches between requests: fetch sessions, which remember what a client fetches, and long
polls, which are fetches that wait for records.
"""
