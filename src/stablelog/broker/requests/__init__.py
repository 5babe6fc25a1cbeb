"""The way of a request from its connection to the handler of its API, before and after the client's login."""
