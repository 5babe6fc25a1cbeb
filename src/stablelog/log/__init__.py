"""The log of one partition: files, offsets, producers, and what a reader may see."""
