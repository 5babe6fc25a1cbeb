"""The compiled loops over records: what they do, how they are compiled, and where a machine keeps them."""
