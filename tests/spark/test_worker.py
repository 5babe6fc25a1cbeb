"""A worker is tuned once."""

import gc

from stablelog.spark import worker


def test_what_is_alive_at_the_first_task_is_walked_no_more(monkeypatch):
    monkeypatch.setattr(worker, "_is_tuned", False)
    try:
        worker.tune_worker()
        frozen = gc.get_freeze_count()
        assert frozen > 1000
        keep = [[] for _ in range(1000)]
        worker.tune_worker()
        assert gc.get_freeze_count() == frozen
        assert len(keep) == 1000
    finally:
        gc.unfreeze()
