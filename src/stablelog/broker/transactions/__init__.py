"""Transaction groups (topics and producers with one order of commits): the broker executes the decisions of their
coordinators, and writes the markers.
"""
