"""Authentication and authorization rules: principals, credentials, logins, access control lists and quotas.

The package has rules without I/O. The package `broker.security` applies them to connections, and keeps the files of
users, ACLs and quotas.
"""
