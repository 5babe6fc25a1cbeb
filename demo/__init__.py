"""The main job on real input, in three scenes.

`crashes` shows that nothing is lost, `cuts` that all is seen whole, and `tiers` that the log outlives its disk.
"""
