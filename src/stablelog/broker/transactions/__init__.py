"""Transaction groups: decisions of the transaction coordinators are executed, and markers written."""
