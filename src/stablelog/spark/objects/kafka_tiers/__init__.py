"""Readers of the objects that Apache Kafka's storage plugins have written."""
