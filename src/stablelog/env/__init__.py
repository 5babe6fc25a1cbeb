"""The doors to the outside: the clock and the disk. Each has a simulated twin in `stablelog.testing`."""
