"""The messages of stablelog's own APIs.

Kafka has no message for a joint commit (`joint`), a cut (`cut`) or the bounds of transactions (`commits`). These
messages have API keys from a range that Kafka does not use. Their classes are declared as kio declares Kafka's, and the
same code handles them: the same headers, the same check of counts (`wire.guard`), the same reader and writer. All are
flexible and have one version, 0.
"""
