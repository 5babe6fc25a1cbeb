"""Kernels: the compiled loops over records, their compilation and their cache on each machine."""
