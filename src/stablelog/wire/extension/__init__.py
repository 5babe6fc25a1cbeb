"""The messages of stablelog's own APIs.

Kafka has no message for a joint commit, which commits the transactions of several producers together (`joint`), for a
cut, a position between two commits in all partitions (`cut`), or for the offsets at which transactions begin and end
(`commits`). These messages have API keys from a range that Kafka does not use. Their classes are declared like those of
the library kio for Kafka's messages. So the code that handles Kafka's messages handles these, too: headers, the check
of counts (`wire.guard`), reader and writer. All messages of stablelog's own APIs are flexible and have one version, 0.
"""
