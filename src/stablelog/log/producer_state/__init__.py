"""What a partition knows of its producers: sequences, epochs and open transactions; in memory and in snapshots."""
