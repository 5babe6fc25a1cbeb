"""The clock and the disk: the interfaces to the machine. `stablelog.testing` has a simulation of each."""
