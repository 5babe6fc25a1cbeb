"""Client quotas as Apache Kafka has them: who has which quota, the rates of clients, and throttle times.

The package contains rules only: each function gets the current time as `now_ms`.
"""
