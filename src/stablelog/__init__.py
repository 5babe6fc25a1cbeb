"""stablelog: a transactional log in Python that every Kafka client can use."""
