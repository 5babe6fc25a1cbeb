"""Requests that administer a cluster: topics, settings, groups, transactions, users, ACLs and quotas.

Each module has the functions of one area, such as topics. Their first argument is a `Cluster`, which knows the brokers.
They return *steps*, generators of I/O operations, which `client.blocking.admin` and `client.aio.admin` carry out. A
function imports the classes of its messages when it is called, so that a command imports only those of its own
requests.
"""
