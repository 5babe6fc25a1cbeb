"""A small synchronous client of the Kafka protocol, for what confluent-kafka has no call for; and `stablelog.connect`."""
