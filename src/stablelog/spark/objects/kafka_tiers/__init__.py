"""Reading of what Apache Kafka tiered, from the objects of its storage plugins."""
