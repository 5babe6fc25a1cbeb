"""Tools that read the files of a running or a stopped broker."""
