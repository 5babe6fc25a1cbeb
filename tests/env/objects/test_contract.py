"""Every object store keeps the same promises: the real ones, the simulation and the test server."""

import contextlib
import os
import threading
import time
import urllib.request

import pytest

from peers import object_stores
from peers.object_stores import NotAvailableError
from stablelog.env.objects.check import check, require_conditions
from stablelog.env.objects.opening import open_store
from stablelog.env.objects.retrying_store import ObjectStore, Patience
from stablelog.errors import DamageError, ObjectExistsError, ObjectMissingError, StablelogError
from stablelog.testing.s3 import serve_s3
from stablelog.testing.sim_objects import HOSTILE, SimObjects

SHORT = Patience(limit_s=5)
LARGE_SIZE = 40 << 20


@pytest.fixture(scope="module")
def s3():
    with serve_s3() as server:
        yield server


@pytest.fixture(scope="module")
def moto():
    """Another implementation of S3: what both servers do is not our own reading of the protocol."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "aws_endpoint": f"http://{host}:{port}",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "aws_region": "us-east-1",
    }
    urllib.request.urlopen(urllib.request.Request(f"{options['aws_endpoint']}/bucket", method="PUT"))
    yield options
    server.stop()


def real(serve):
    """Run a real store; skip its tests where it cannot be had."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(serve())
        except NotAvailableError as missing:
            pytest.skip(str(missing))
        yield found


@pytest.fixture(scope="module")
def ceph():
    yield from real(object_stores.ceph)


@pytest.fixture(scope="module")
def azurite():
    yield from real(object_stores.azurite)


# `make stores` runs the tests on real stores, too.
REAL = ["ceph", "azurite"] if os.environ.get("STABLELOG_STORES") else []


@pytest.fixture(params=["directory", "memory", "s3", "moto", "simulated", "hostile", *REAL])
def store(request, tmp_path, s3):
    match request.param:
        case "ceph" | "azurite":
            found = request.getfixturevalue(request.param)
            return open_store(f"{found.url}/{tmp_path.name}", allow_http=True, options=found.options)
        case "directory":
            return open_store((tmp_path / "objects").as_uri())
        case "memory":
            return open_store("memory:///")
        case "s3":
            return open_store(f"s3://bucket/{tmp_path.name}", SHORT, allow_http=True, options=s3.options)
        case "moto":
            options = request.getfixturevalue("moto")
            return open_store(f"s3://bucket/{tmp_path.name}", SHORT, allow_http=True, options=options)
    simulated = SimObjects(seed=7, faults=HOSTILE if request.param == "hostile" else SimObjects().faults)
    return ObjectStore(simulated, now_s=simulated.now_s, sleep=simulated.sleep)


def test_a_key_is_created_once(store):
    store.create("a/b/c", b"first")
    with pytest.raises(ObjectExistsError, match="a/b/c exists already, and has another content"):
        store.create("a/b/c", b"second")
    store.create("a/b/c", b"first")  # The own content: an answer may have been lost.
    assert store.get("a/b/c") == b"first"


@pytest.mark.extended
def test_objects_without_content_are_objects(store):
    store.create("a/empty", b"")
    assert store.get("a/empty") == b""
    assert [one.size for one in store.list_after("a")] == [0]


@pytest.mark.extended
def test_ranges_are_whole_or_refused(store):
    store.create("a/b", bytes(range(100)))
    assert store.get_range("a/b", 0, 100) == bytes(range(100))
    assert store.get_range("a/b", 98, 2) == b"\x62\x63"
    for start, size in ((98, 3), (100, 1), (5_000, 1)):
        with pytest.raises(DamageError, match=rf"a/b has fewer than {start + size} bytes"):
            store.get_range("a/b", start, size)
    with pytest.raises(ObjectMissingError, match="has no object a/c"):
        store.get_range("a/c", 0, 1)


def test_a_missing_object_is_missing_and_deleting_it_is_no_error(store):
    with pytest.raises(ObjectMissingError, match="has no object a/b"):
        store.get("a/b")
    store.delete("a/b")
    store.create("a/b", b"1")
    store.delete("a/b")
    with pytest.raises(ObjectMissingError):
        store.get("a/b")
    assert store.list_after("a") == []


def test_a_listing_has_the_order_of_keys_and_begins_after_one(store):
    keys = ["a/-", "a/0", "a/0/x", "a/1-2", "a/10", "a/2", "a/B", "a/a"]
    keys = [
        key for key in keys if key != "a/0"
    ]  # A store of files cannot have a key that is another's directory.
    for key in reversed(keys):
        store.create(key, key.encode())
    store.create("ab/1", b"")
    store.create("b/1", b"")
    assert [one.key for one in store.list_after("a")] == sorted(keys)
    assert [one.size for one in store.list_after("a")] == [len(key) for key in sorted(keys)]
    assert [one.key for one in store.list_after("a", "a/10")] == ["a/2", "a/B", "a/a"]
    assert [one.key for one in store.list_after("a", "a/1-3")] == ["a/10", "a/2", "a/B", "a/a"]
    assert store.list_after("a", "a/z") == []
    assert store.list_after("c") == []


def test_directories_are_listed_by_their_names(store):
    assert store.directories() == []
    for key in ("a/b/c", "a/b/d", "a/x/y/z", "a/f", "b.2/=Q/1", "top"):
        store.create(key, b"1")
    assert store.directories() == ["a", "b.2"]
    assert store.directories("a") == ["b", "x"]
    assert store.directories("a/x") == ["y"]
    assert store.directories("a/b") == []
    assert store.directories("nothing") == []
    store.delete("a/x/y/z")
    assert store.directories("a") == ["b"]


@pytest.mark.extended
def test_many_directories_are_listed(store):
    if store.counts is not None and store.url.startswith("file:"):
        count = 30
    else:
        count = 1_100  # more than one page of S3
    for number in range(count):
        store.create(f"many/{number}/x", b"")
    assert len(store.directories("many")) == count


def test_a_listing_tells_when_an_object_was_written(store):
    store.create("a/1", b"")
    store.upload("a/2", lambda: [b"2"], 1)
    first, second = store.list_after("a")
    assert first.modified_ms <= second.modified_ms
    if not store.url.startswith("sim:"):
        assert abs(first.modified_ms - time.time() * 1000) < 60_000


def test_an_upload_is_made_of_its_pieces_and_replaces(store):
    store.upload("a/b", lambda: [b"one", memoryview(b"two"), b""], 6)
    assert store.get("a/b") == b"onetwo"
    store.upload("a/b", lambda: [b"three"], 5)
    assert store.get("a/b") == b"three"


@pytest.mark.extended
def test_a_large_upload_is_whole(store):
    piece = bytes(range(256)) * 4096
    store.upload("a/large", lambda: [piece] * (LARGE_SIZE // len(piece)), LARGE_SIZE)
    assert [one[:2] for one in store.list_after("a")] == [("a/large", LARGE_SIZE)]
    assert store.get_range("a/large", LARGE_SIZE - 3, 3) == piece[-3:]
    assert store.get_range("a/large", 16 << 20, 5) == piece[:5]


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "a/../b", ".a", "a b", "ä", "a/" * 451 + "a", "x" * 256]
)
def test_a_key_that_some_store_rejects_is_no_key(store, key):
    with pytest.raises(AssertionError):
        store.create(key, b"")


def test_of_many_that_create_a_key_one_wins(store, request):
    if store.url.startswith("sim:"):
        pytest.skip("the simulation is not safe to call from several threads")
    if request.node.callspec.params["store"] == "moto":
        pytest.skip("moto looks and writes in two steps")
    winners, barrier = [], threading.Barrier(8)

    def work(content):
        barrier.wait()
        try:
            store.create("a/race", content)
            winners.append(content)
        except ObjectExistsError:
            pass

    threads = [threading.Thread(target=work, args=(b"%d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert winners == [store.get("a/race")]


# The names of topics as keys have them. Libraries look for names of errors in answers, and answers contain keys.
NAMES = [
    "InternalError",
    "InternalErrors.SlowDown",
    "NoSuchKey-NoSuchBucket",
    "AccessDenied",
    "a..b.",
    "-_-",
    "=",
    "n" * 249,
    "InternalError" * 19,
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_a_key_of_any_name_lives_from_its_creation_to_its_deletion(store, name):
    directory = f"t.{name}"
    piece, count = bytes(range(256)) * 4096, 17  # more than one part
    small, large = f"{directory}/=id/0/1.log", f"{directory}/=id/0/2.log"
    store.create(small, b"small")
    with pytest.raises(ObjectExistsError):
        store.create(small, b"other")
    store.upload(large, lambda: [piece] * count, len(piece) * count)
    assert [(one.key, one.size) for one in store.list_after(directory)] == [
        (small, 5),
        (large, len(piece) * count),
    ]
    assert [one.key for one in store.list_after(f"{directory}/=id/0", small)] == [large]
    assert store.directories() == [directory]
    assert store.directories(directory) == ["=id"]
    assert store.get_range(large, len(piece) * count - 2, 2) == b"\xfe\xff"
    for key in (small, large):
        store.delete(key)
    assert store.list_after(directory) == []
    with pytest.raises(ObjectMissingError):
        store.get(small)


@pytest.mark.parametrize("prefix", ["InternalError", "SlowDown/x", "a%20b", "a b", "a%25b", "ü", "a.b-c_d"])
def test_a_prefix_of_any_name_holds_objects(prefix, tmp_path, s3):
    piece, count = bytes(1 << 20), 17
    for url in (f"s3://bucket/{tmp_path.name}/{prefix}", f"{tmp_path.as_uri()}/{prefix}"):
        store = open_store(url, SHORT, allow_http=True, options=s3.options)
        store.create("a/1", b"1")
        store.upload("a/2", lambda: [piece] * count, len(piece) * count)
        assert store.counts["upload"] == 1
        assert [one.key for one in store.list_after("a")] == ["a/1", "a/2"]
        assert [one.key for one in store.list_after("a", "a/1")] == ["a/2"]
        assert store.directories() == ["a"]
        assert (store.get("a/1"), store.get_range("a/2", 1, 1)) == (b"1", b"\0")
        store.delete("a/1")
        store.delete("a/2")
        assert store.list_after("a") == []


@pytest.mark.extended
def test_a_store_keeps_every_promise_that_the_command_checks(store):
    assert [finding for finding in check(store) if finding.fault] == []


@pytest.mark.skipif(not REAL, reason="make stores runs it")
def test_a_ceph_bucket_with_versions_of_objects_is_refused(ceph):
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=ceph.options["aws_endpoint"],
        aws_access_key_id=ceph.options["aws_access_key_id"],
        aws_secret_access_key=ceph.options["aws_secret_access_key"],
        region_name=ceph.options["aws_region"],
    )
    client.create_bucket(Bucket="versioned")
    store = open_store("s3://versioned/prefix", allow_http=True, options=ceph.options)
    require_conditions(store, "before")
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    with pytest.raises(StablelogError, match=r"is not safe, .* ignores If-None-Match"):
        require_conditions(store, "after")
