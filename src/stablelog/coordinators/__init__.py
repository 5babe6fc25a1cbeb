"""Coordinators of transactions, joint commits and consumer groups. Each method takes an event, such as a request, and
returns a decision: records for the coordinator's log, markers and answers. The broker carries the decision out. The
coordinators read and write no log and no socket.
"""
