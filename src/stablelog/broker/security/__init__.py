"""Security of a running broker: ACLs, logins, users and quotas, with their files and their effect on requests."""
