"""Authentication and authorization rules: principals, credentials, logins, access control lists and quotas.

The package decides only. `broker.security` carries the decisions out: it keeps the files, and knows the connections.
"""
