"""Who decides consumer groups: members, rebalances, and the offsets they commit."""
