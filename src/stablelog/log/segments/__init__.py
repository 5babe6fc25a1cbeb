"""The segments of a partition: log files with their indexes. This package scans, checks and replaces them."""
