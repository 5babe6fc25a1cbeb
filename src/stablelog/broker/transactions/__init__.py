"""Transaction groups: the broker executes the decisions of the transaction coordinators, and writes the markers."""
