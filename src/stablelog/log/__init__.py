"""The log of one partition: its files, its offsets, the state of its producers, and the reads at each isolation
level.
"""
