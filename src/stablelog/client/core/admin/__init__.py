"""Administration of a cluster: topics, settings, groups, transactions, users, ACLs and quotas.

Each module has the steps of one area, as functions whose first argument is a `Cluster`. `client.blocking.admin` and
`client.aio.admin` run them. The messages are imported when a function first needs them, so that a command imports only
those of its own requests.
"""
