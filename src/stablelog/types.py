"""Types that all packages of stablelog share."""

TopicPartition = tuple[str, int]  # topic name, and number of the partition in the topic
