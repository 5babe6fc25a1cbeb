"""The log of one partition: its files, offsets and producer state, and the reads at each isolation level."""
