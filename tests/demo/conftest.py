"""The scenes start Spark in processes of their own."""

import pytest

from tests.quick_java import QUICK_JAVA


@pytest.fixture(autouse=True)
def quick_java(monkeypatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
