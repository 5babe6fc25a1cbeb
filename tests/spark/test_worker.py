"""A worker is tuned once; and what fails when it starts takes nothing from others."""

import gc
import importlib
import sys

import pytest

import pyspark_stablelog
from stablelog.spark import worker


@pytest.mark.extended
def test_what_is_alive_at_the_first_task_is_walked_no_more():
    worker.tune_worker.cache_clear()
    try:
        worker.tune_worker()
        frozen = gc.get_freeze_count()
        assert frozen > 1000
        keep = [[] for _ in range(1000)]
        worker.tune_worker()
        # Other threads go on meanwhile: what they let go of leaves the count, so it is not held to be the same.
        assert gc.get_freeze_count() < frozen + len(keep)
    finally:
        gc.unfreeze()


def test_a_source_that_cannot_be_imported_hides_no_other(monkeypatch):
    class Broken:
        def __getattr__(self, name):
            raise RuntimeError("a library of another version")

    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "stablelog.spark.data_source", Broken())
        patched.delattr(pyspark_stablelog, "DefaultSource")
        assert not hasattr(importlib.reload(pyspark_stablelog), "DefaultSource")
    assert importlib.reload(pyspark_stablelog).DefaultSource.name() == "stablelog"
