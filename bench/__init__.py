"""stablelog and Apache Kafka in turn on this machine, and what the machine itself can do."""
