"""Spark data source and sink: the only package that imports PySpark.

`stablelog.spark.session()` returns a Spark session with settings for stablelog. `stablelog.spark.register()` makes
`format("stablelog")` known in a session that exists. `stablelog.spark.count()` returns the number of records of a read
without reading them. `stablelog.spark.verify()` checks an object store.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablelog.spark.local_session import session
    from stablelog.spark.record_count import count
    from stablelog.spark.registration import register
    from stablelog.spark.verification import verify

__all__ = ["count", "register", "session", "verify"]


if not TYPE_CHECKING:  # a type checker knows the names above, and refuses all others

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use, because Spark imports this package in every process that it starts."""
        if name == "session":
            from stablelog.spark.local_session import session

            return session
        if name == "register":
            from stablelog.spark.registration import register

            return register
        if name == "count":
            from stablelog.spark.record_count import count

            return count
        if name == "verify":
            from stablelog.spark.verification import verify

            return verify
        raise AttributeError(f"module 'stablelog.spark' has no attribute {name!r}")
