"""Connections of clients: frames, the memory of requests in flight, long messages, and the queue of responses."""
