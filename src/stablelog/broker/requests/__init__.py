"""From a request's bytes to its response: decoding, the check that the client has logged in, the call of the handler of
the API, and encoding.
"""
