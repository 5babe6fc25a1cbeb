"""Security of a running broker: ACLs, logins, users and quotas. The modules store them in files and apply them to
requests.
"""
