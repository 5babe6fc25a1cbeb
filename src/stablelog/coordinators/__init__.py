"""Coordinators of transactions, of joint commits (several transactions that are committed together) and of consumer
groups. Each method takes an event, such as a request, and returns a decision: records for the coordinator's log,
markers and answers. The broker carries the decision out. The coordinators read and write no log and no socket.
"""
