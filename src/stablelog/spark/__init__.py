"""Spark's way in: the only room that knows PySpark.

`stablelog.spark.session()` gives a Spark session that is ready to read the log.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablelog.spark.local_session import session

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: Spark imports this package in every process it starts."""
    if name == "session":
        from stablelog.spark.local_session import session

        return session
    raise AttributeError(f"module 'stablelog.spark' has no attribute {name!r}")
