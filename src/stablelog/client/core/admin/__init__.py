"""Requests that administer a cluster: topics, settings, groups, transactions, users, ACLs and quotas.

Each module has the steps of one area, as functions whose first argument is a `Cluster`. `client.blocking.admin` and
`client.aio.admin` run the steps. A function imports its messages when it is called, so that a command imports only the
messages of its own requests.
"""
