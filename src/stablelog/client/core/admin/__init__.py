"""Requests that administer a cluster: topics, settings, groups, transactions, users, ACLs and quotas.

Each module has the functions of one area, such as topics. Their first argument is a `Cluster`. They decide what is sent
(as *steps*, generators of I/O operations), and `client.blocking.admin` and `client.aio.admin` carry it out. A function
imports its messages when it is called, so that a command imports only the messages of its own requests.
"""
