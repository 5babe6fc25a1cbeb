"""Mutants: small faults in a copy of the sources, and the tests that have to fail with them.

`python -m tests.mutants rules` applies the mutants of `rules`, one for each protocol rule, and runs the test that a row
names. `python -m tests.mutants random --seed 7` draws mutants of the rooms that decide or wire from all that `changes` can
make, and runs the tests that execute a changed line (`lines`). Neither changes the sources themselves.
"""
