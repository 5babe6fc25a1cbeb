"""Client quotas as Apache Kafka has them: the quotas of each client, the measured rates of clients, and throttle times.

The package contains rules only: each function gets the current time as `now_ms`.
"""
