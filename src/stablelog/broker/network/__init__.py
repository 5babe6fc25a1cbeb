"""Connections of clients: their buffers, the memory of requests in flight, long messages, and queues of responses."""
