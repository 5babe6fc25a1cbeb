"""The report of minutes for each folder adds up what pytest says of each test. Workers keep groups together."""

from types import SimpleNamespace

import pytest

from tests.durations import Durations, folder_of
from tests.scale import beyond_samples


def report(nodeid, when, duration, **worker):
    return SimpleNamespace(nodeid=nodeid, when=when, duration=duration, **worker)


def test_folders_are_sorted_by_their_minutes_and_workers_say_when_they_ended():
    now = iter([0.0, 60.0, 90.0, 120.0, 180.0])
    durations = Durations(now_s=lambda: next(now))
    for one in (
        report("tests/log/test_model.py::test_one", "setup", 6.0, worker_id="gw0"),
        report("tests/log/test_model.py::test_one", "call", 60.0, worker_id="gw0"),
        report("tests/broker/apis/test_fetch.py::test_two[a/b]", "call", 120.0, worker_id="gw1"),
        report("tests/test_tidy.py::test_three", "call", 3.0, worker_id="gw0"),
    ):
        durations.pytest_runtest_logreport(one)
    assert list(durations.lines()) == [
        "  2.00  tests/broker (1 tests)",
        "  1.10  tests/log (1 tests)",
        "  0.05  tests (1 tests)",
        "  3.15  all (3 tests)",
        "  2.00  the longest test, tests/broker/apis/test_fetch.py::test_two[a/b]",
        "  1.15  worker gw0, ended after 3.00",
        "  2.00  worker gw1, ended after 2.00",
    ]


def test_without_workers_there_is_one_process():
    durations = Durations()
    durations.pytest_runtest_logreport(report("tests/test_tidy.py::test_three", "call", 3.0))
    assert "worker master" in list(durations.lines())[-1]


@pytest.mark.parametrize(("limit_min", "status"), [(0.04, 1), (0.06, 0), (None, 0)])
def test_a_run_above_its_limit_fails_and_says_so(limit_min, status):
    durations = Durations(limit_min)
    durations.pytest_runtest_logreport(report("tests/test_tidy.py::test_three", "call", 3.0))
    session = SimpleNamespace(exitstatus=0)
    durations.pytest_sessionfinish(session)
    assert session.exitstatus == status
    assert any("may take 0.04 minutes" in line for line in durations.lines()) == (status == 1)


def test_what_lies_in_tests_itself_is_a_folder_too():
    assert folder_of("tests/test_docs.py::test_one") == "tests"
    assert folder_of("tests/broker/apis/test_fetch.py::TestOne::test_two") == "tests/broker"


@pytest.mark.xdist_group("together")
def test_a_group_of_tests_runs_on_one_worker(request):
    """Otherwise each worker starts a Spark session of its own. xdist puts a group's name behind the ids of its tests."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("there is one process")
    assert request.node.nodeid.endswith("@together"), "this pytest-xdist groups no tests under this pytest"
    for fixture, group in (("spark", "spark"), ("shared_kafka", "shared kafka")):
        for item in request.session.items:
            if fixture in getattr(item, "fixturenames", ()):
                assert item.nodeid.endswith(f"@{group}"), (
                    "pytest-xdist has read the groups before conftest.py"
                )


class Case:
    """An item of pytest. `size` is that of its mark `sampled`; None for no mark."""

    def __init__(self, nodeid, size):
        self.nodeid, self._size = nodeid, size

    def get_closest_marker(self, name):
        assert name == "sampled"
        return self._size and SimpleNamespace(args=(self._size,))


def test_a_sample_of_the_cases_is_spread_evenly_and_the_others_are_left_to_the_longer_run():
    items = [Case(f"tests/test_a.py::test_one[{number}]", 2) for number in range(5)]
    items += [Case("tests/test_a.py::test_two", None), Case("tests/test_a.py::test_three[x]", 3)]
    left = [one.nodeid for one in beyond_samples(items)]
    assert left == [f"tests/test_a.py::test_one[{number}]" for number in (1, 3, 4)]
