"""Topics and their partitions: created, opened, changed and deleted.

`topic_list` is the list of topics and decides which changes are allowed; it does no input or output. `open_partitions`
has the partitions that are open. `topic_files` reads and writes the files of creation, change and deletion.
"""
