"""The consumer group protocol of KIP-848: the broker computes the assignments, and members follow in heartbeats."""
