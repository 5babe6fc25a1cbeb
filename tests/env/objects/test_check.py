"""The check of a store finds what makes it unsafe, and leaves nothing behind."""

import pytest

from stablelog.env.objects.attempts import StoredObject, TooShortError
from stablelog.env.objects.check import TRIALS, check, require_conditions
from stablelog.env.objects.opening import open_store
from stablelog.env.objects.retrying_store import ObjectStore, Patience
from stablelog.errors import StablelogError, StoreError
from stablelog.testing.s3 import serve_s3
from stablelog.testing.sim_objects import SimObjects, StoreFaults

SHORT = Patience(limit_s=1)
MEASURED = ["rate of writes", "rate of reads", "time of a listing"]


def of(simulated):
    return ObjectStore(simulated, now_s=simulated.now_s, sleep=simulated.sleep)


def faults(store):
    findings = list(check(store))
    assert [finding.promise for finding in findings] == [*TRIALS, *MEASURED]
    assert [bool(finding.measured) for finding in findings] == [False] * len(TRIALS) + [True] * len(MEASURED)
    return {finding.promise: finding.fault for finding in findings if finding.fault}


def test_a_good_store_passes_and_nothing_stays(tmp_path):
    assert faults(open_store(tmp_path.as_uri())) == {}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    require_conditions(open_store(tmp_path.as_uri()), "a")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.extended
def test_a_server_that_ignores_conditions_is_found_and_refused():
    with serve_s3() as s3:
        store = open_store("s3://bucket/prefix", SHORT, allow_http=True, options=s3.options)
        assert faults(store) == {}
        require_conditions(store, "a")
        s3.ignores_conditions = True
        found = faults(store)
        assert "the store ignores If-None-Match" in found["a key is created once"]
        assert (
            "at the same time 16 succeeded"
            in found["of 16 writers that create a key at the same time one succeeds"]
        )
        with pytest.raises(StablelogError, match=r"s3://bucket/prefix is not safe, .*If-None-Match"):
            require_conditions(store, "a")
        assert s3.objects == {}


def test_a_store_that_fails_is_asked_once_and_what_it_has_created_meanwhile_is_no_fault():
    """The error names the request that has failed. The object that is left neither disturbs the next attempt nor stays."""
    simulated = SimObjects(1, StoreFaults(unanswered=1.0))  # it applies everything, and answers nothing
    with pytest.raises(StoreError, match="create of sim://store/check/a/x had no clear answer in 30 s"):
        require_conditions(of(simulated), "a")
    assert simulated.now_s() < 40, "the limit of one call"
    assert list(simulated.objects) == ["check/a/x"]
    simulated.faults = StoreFaults()
    require_conditions(of(simulated), "a")
    assert not simulated.objects


def test_a_store_that_rejects_requests_is_told():
    with pytest.raises(StoreError, match="403"):
        list(check(of(SimObjects(is_rejecting=True))))


class LateListing(SimObjects):
    """It lists an object only when another is created after it."""

    def list_after(self, directory, after):
        yield from list(super().list_after(directory, after))[:-1]


class WordOrder(SimObjects):
    """It lists in the order of words."""

    def list_after(self, directory, after):
        listed = super().list_after(directory, after)
        yield from sorted(listed, key=lambda one: one.key.lower().replace("-", "~"))


class EarlyEnd(SimObjects):
    """It fills the part of a range past the end of an object with zeros."""

    def get_range(self, key, start, size):
        try:
            return super().get_range(key, start, size)
        except TooShortError:
            return bytes(size)


class Undead(SimObjects):
    """It returns deleted objects."""

    def delete(self, key):
        self.objects[key] = b"gone"


class SmallParts(SimObjects):
    """It loses the last piece of an upload."""

    def upload(self, key, pieces, pace):
        super().upload(key, list(pieces)[:-1], pace)


class Swapped(SimObjects):
    """It puts the parts of an upload together in another order."""

    def upload(self, key, pieces, pace):
        super().upload(key, [bytes(reversed(bytes(piece))) for piece in pieces], pace)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "promise", "fault"),
    [
        (LateListing, "a listing is complete, at once, in the order of keys", "not listed right after"),
        (EarlyEnd, "ranges of an object", "past the end"),
        (Undead, "a deleted object is gone, and its key is free", "after it was deleted"),
        (SmallParts, "an upload of 20 MiB in parts is whole", "another size"),
        (Swapped, "an upload of 20 MiB in parts is whole", "mixed up"),
    ],
)
def test_each_broken_promise_is_found(kind, promise, fault):
    trial = TRIALS[promise]
    assert fault in trial(of(kind()), "check/x")
    assert trial(of(SimObjects()), "check/x") == ""


def test_a_store_that_lists_in_another_order_is_no_store():
    with pytest.raises(StoreError, match="does not list keys in the order of their bytes"):
        of(WordOrder(objects={"a/B": b"", "a/a": b"", "a/0": b"", "a/-": b""})).list_after("a")
    assert of(SimObjects(objects={"a/B": b"1"})).list_after("a") == [StoredObject("a/B", 1, 0)]


@pytest.mark.parametrize(
    ("rate", "latency_s", "slow"),
    [
        (100 << 20, 0.0, {}),
        (400 << 10, 0.0, {"rate of writes": "takes 0.7 hours", "rate of reads": "takes 10 s"}),
        (50 << 10, 0.0, {"rate of writes": "may never be sent", "rate of reads": "longer than a minute"}),
        (100 << 20, 3.0, {"time of a listing": "lists 2,000 times, and takes"}),
    ],
)
def test_the_check_says_what_a_store_is_too_slow_for(rate, latency_s, slow):
    simulated = SimObjects(faults=StoreFaults(latency_s=latency_s), rate=rate)
    found = {one.promise: one for one in check(of(simulated), simulated.now_s) if one.measured}
    assert list(found) == MEASURED
    told = {promise: one.slow for promise, one in found.items() if one.slow}
    for promise, words in slow.items():
        assert words in told[promise]
    assert not slow or told.keys() >= slow.keys()
    assert slow or not told
    if not latency_s:
        shown = float(found["rate of reads"].measured.partition(" ")[0].replace(",", ""))
        assert shown == pytest.approx(rate / (1 << 20), rel=0.05)
