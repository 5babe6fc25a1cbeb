"""The command line: `stablelog --help`."""
