"""Tools that work on the files of a running or stopped broker, without its protocol: inspect, verify, repair, restore."""
