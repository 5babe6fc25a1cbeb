"""Values that every room shares."""

TopicPartition = tuple[str, int]  # topic name, index of the partition
