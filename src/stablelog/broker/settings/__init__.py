"""Settings of the broker, of topics and of consumer groups: the tables of all settings, and the checks of their values.

`table` joins the tables of the modules, one for each subject. `config` has the values of a running broker, and
`group_overrides` the values that single consumer groups have in place of the broker's.
"""
