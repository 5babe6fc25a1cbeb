"""Client quotas as Apache Kafka has them: which limit a client has, the measured rates of clients, and how long clients
above their limit are throttled.

The package contains rules only: each function gets the current time as `now_ms`.
"""
