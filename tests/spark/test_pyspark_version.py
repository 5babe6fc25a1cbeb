"""A PySpark that is too old is named, and what to install."""

import re
from pathlib import Path

import pytest

from stablelog.errors import UnavailableError
from stablelog.spark.pyspark_version import VERSION_MIN, check_pyspark

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0.dev1", "5.0.0", "10.0"])
def test_a_new_pyspark_is_accepted(version):
    check_pyspark(version)
    check_pyspark()


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1", "4.1.0.dev4"])
def test_an_old_pyspark_is_refused_with_the_version_to_install(version):
    with pytest.raises(
        UnavailableError, match=rf"PySpark {re.escape(version)} is too old: .*needs 4.2 or newer.*pip install"
    ):
        check_pyspark(version)


def test_the_documents_and_the_package_state_the_same_version():
    least = ".".join(map(str, VERSION_MIN))
    assert f"PySpark {least} or newer" in (ROOT / "README.md").read_text()
    assert f"PySpark {least} or newer" in (ROOT / "docs/guides/spark.md").read_text()
    assert f'"pyspark>={least},<5"' in (ROOT / "pyproject.toml").read_text()
