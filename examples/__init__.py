"""Pipelines that people run, each short. `python -m examples.<name>` runs one on a log of its own."""
