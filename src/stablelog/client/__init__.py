"""The native client (`stablelog.connect`), and a small Kafka client for requests that confluent-kafka does not
offer.
"""
