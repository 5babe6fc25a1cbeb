"""The messages of stablelog's own APIs.

Kafka has no message for a joint commit (`joint`), a cut (`cut`) or the bounds of transactions (`commits`). These
messages have API keys from a range that Kafka does not use. Their classes are declared like those of the library kio
for Kafka's messages. So the same code handles both: headers, the check of counts (`wire.guard`), reader and writer. All
messages of stablelog's own APIs are flexible and have one version, 0.
"""
