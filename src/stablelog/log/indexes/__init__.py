"""The three indexes of a segment (offsets, times and aborted transactions), and the summary of a sealed segment (its
sizes, timestamps and checksums).
"""
