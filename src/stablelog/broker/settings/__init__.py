"""Settings of the broker, of topics and of consumer groups: the table of all settings, and the checks of their values.

`table` lists all settings. `config` holds the values of a running broker.
"""
