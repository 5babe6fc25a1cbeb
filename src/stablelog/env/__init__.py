"""The interfaces to the machine: its clock and its disk. `stablelog.testing` has a simulation of each."""
