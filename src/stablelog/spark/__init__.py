"""Spark's way in: the only room that knows PySpark.

`stablelog.spark.session()` gives a Spark session that is ready to read the log; `stablelog.spark.count()` says how
many records a read has, without reading them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablelog.spark.counting import count
    from stablelog.spark.local_session import session

__all__ = ["count", "session"]


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: Spark imports this package in every process it starts."""
    if name == "session":
        from stablelog.spark.local_session import session

        return session
    if name == "count":
        from stablelog.spark.counting import count

        return count
    raise AttributeError(f"module 'stablelog.spark' has no attribute {name!r}")
