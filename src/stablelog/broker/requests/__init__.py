"""The way of a request from its connection to the handler of its API, and the check that its client has logged in."""
