"""The files of a partition's directory: their names, and the content of the small files."""
