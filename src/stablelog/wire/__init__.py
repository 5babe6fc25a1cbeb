"""Kafka's protocol: frames and messages, bytes to values and back. Pure."""
