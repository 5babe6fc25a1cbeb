"""The segments of a partition: log files with their indexes, how they are scanned, proven and replaced."""
