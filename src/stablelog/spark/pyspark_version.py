"""The versions of PySpark that the data source works with.

Older ones lack parts of the data source API, and fail in the middle of a query with an error that names a module.
"""

from typing import Final

from stablelog.errors import UnavailableError

VERSION_MIN: Final = (4, 2)  # docs/guides/spark.md and pyproject.toml state the same


def check_pyspark(version: str | None = None) -> None:
    """Check that the installed PySpark is new enough.

    Args:
        version: the version to check; that of the installed PySpark if it is not given.

    Raises:
        UnavailableError: this version is too old.
    """
    if version is None:
        import pyspark

        version = pyspark.__version__
    major, minor, *_ = version.split(".")
    if (int(major), int(minor)) < VERSION_MIN:
        least = ".".join(map(str, VERSION_MIN))
        raise UnavailableError(
            f"PySpark {version} is too old: format('stablelog') needs {least} or newer, because older versions lack parts "
            f"of the data source API: pip install 'pyspark>={least},<5'"
        )
