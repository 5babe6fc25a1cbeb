"""The interfaces to the outside: clock, disk and object stores. `stablelog.testing` has a simulation of each."""
