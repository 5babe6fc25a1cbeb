"""Metrics, and log lines whose number is limited."""
