"""Two brokers with one prefix of an object store: somebody has copied the data directory of a running broker."""

import re
import shutil

import pytest

from stablelog.testing.s3 import serve_s3
from tests.broker.tiering.life import URL, alive, reach
from tests.waiting import until

pytestmark = pytest.mark.extended


def test_the_second_of_two_brokers_fences_the_first_which_stops_tiering_and_says_why(tmp_path, monkeypatch):
    with serve_s3() as s3:
        reach(s3, monkeypatch)
        with alive(tmp_path / "first", s3) as first:
            first.create()
            first.write()
            first.wait_until_remote()
            until(first.is_commit_log_copied, "the commit log is not copied")
            shutil.copytree(tmp_path / "first", tmp_path / "second")
            with alive(tmp_path / "second", s3) as second:
                second.go_on(first.writer)
                second.write()
                second.wait_until_remote()
                second.check()
            assert not second.errors()
            check_fenced(first)
            objects, bases = dict(s3.objects), first.local_bases()

            first.kill()  # It is started again, and is now the later broker. But its records are others.
            until(lambda: len(first.errors()) > 1, "it does not look into the store")
            _, line = first.errors()
            assert re.search(rf"-0 cannot be copied to {URL}; .* of t\.\S+/0 differs from its copy", line)
            assert set(bases) <= set(first.local_bases())
            first.check_reads()
            for key, content in objects.items():
                assert s3.objects[key] == content, "and nothing in the store is changed or deleted"


def check_fenced(life):
    """Check that a broker finds out that it is fenced, and serves its clients as before."""
    s3, bases = life.s3, life.local_bases()
    objects, deleted = dict(s3.objects), s3.counts["delete"]
    life.write()
    until(life.errors, "the broker does not find out")
    asked = s3.counts.total()
    for _ in range(3):
        life.write()
    (line,) = life.errors()
    assert re.search(
        rf"{URL}: .*has taken over the manifests \(.*\) of \S+/0, .*/manifest/0000000001-\d+", line
    ), line
    assert "This broker copies no more segments" in line
    assert s3.counts.total() == asked, "it sends no more requests"
    assert s3.counts["delete"] == deleted
    assert all(s3.objects[key] == content for key, content in objects.items())
    published = life.local_bases()
    assert published[0] == bases[0]
    assert len(published) > len(bases) + 4, "no segment leaves the local disk"
    assert life.bounds()[0] == 0
    life.check_reads()
