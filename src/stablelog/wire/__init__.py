"""Kafka's protocol: encode and decode frames and messages. No I/O."""
