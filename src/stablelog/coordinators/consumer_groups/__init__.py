"""Group coordinator: the members of consumer groups and their committed offsets."""
