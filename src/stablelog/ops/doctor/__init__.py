"""Diagnosis of a machine, a data directory and a running broker, for a report of a fault.

`facts` has the values, `findings` decides which of them are findings, `diagnosis` puts both together, and `proc_files` parses
the texts of Linux's /proc. These four modules read nothing of the outside. `machine`, `directory` and `running_broker` gather the facts.
"""
