"""The main job on real input: a year of flights through the log, with crashes, and the proof that none was lost."""
