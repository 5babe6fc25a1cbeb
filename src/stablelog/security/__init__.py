"""Who a client is, and what it may do: principals, credentials, access control lists and quotas.

The package contains rules only. `broker.security` carries them out: it keeps the files, and knows the connections.
"""
