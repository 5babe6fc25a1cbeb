"""One module per Kafka API: what is done with the request."""
