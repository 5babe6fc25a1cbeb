"""The main job on real input, in two scenes: `crashes` shows that nothing is lost, `cuts` that all is seen whole."""
