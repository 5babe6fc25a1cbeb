"""The connections of clients: receiving requests, the memory budget of requests in flight, and sending responses."""
