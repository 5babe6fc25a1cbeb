"""Unclear answers are cleared up, and nothing is repeated for ever."""

import errno
import os
import random
import shutil
import stat
import time

import pytest

from stablelog.env.objects import cloud
from stablelog.env.objects.attempts import MissingError, RejectedError, UnclearError
from stablelog.env.objects.cloud import CloudRequests
from stablelog.env.objects.opening import open_store
from stablelog.env.objects.retrying_store import PART_SIZE, ObjectStore, Patience
from stablelog.errors import ObjectExistsError, ObjectMissingError, StoreError, UsageError
from stablelog.testing.s3 import S3Fault, serve_s3
from stablelog.testing.sim_objects import HOSTILE, SimObjects, StoreFaults

SHORT = Patience(limit_s=1, pause_s=0.001, pause_s_max=0.01)


def of(simulated):
    return ObjectStore(simulated, now_s=simulated.now_s, sleep=simulated.sleep)


@pytest.mark.parametrize("seed", range(300))
def test_writers_of_the_same_keys_on_a_hostile_store_agree_on_the_winner(seed):
    """Each writer knows whether it has won, or says that it does not know."""
    simulated, drawn = SimObjects(seed, HOSTILE), random.Random(seed)
    store, outcomes, acting = of(simulated), {}, []

    def write(writer, key):
        try:
            store.create(key, b"%d" % writer)
            outcomes[writer, key] = True
        except ObjectExistsError:
            outcomes[writer, key] = False
        except StoreError:
            outcomes[writer, key] = None

    def act(call, key):
        """Another writer acts before a request of the first."""
        if not acting and drawn.random() < 0.5:
            acting.append(True)
            write(2, drawn.choice(keys))
            acting.clear()

    simulated.between = act
    keys = [f"a/{number}" for number in range(20)]
    for key in keys:
        write(1, key)
    simulated.sleep(HOSTILE.late_s_max)
    for (writer, key), won in outcomes.items():
        holds = simulated.objects.get(key) == b"%d" % writer
        assert won in (None, holds), (
            f"writer {writer} was told {won} of {key}, which it {'holds' if holds else 'lost'}"
        )


def test_nobody_believes_exists_without_reading_back():
    """S3 answers 409 to a create that it did not apply."""
    simulated = SimObjects(3, StoreFaults(wrong_exists=0.9))
    of(simulated).create("a/b", b"1")
    assert simulated.objects == {"a/b": b"1"}


def test_a_store_that_does_not_answer_is_given_up_within_the_limit():
    simulated = SimObjects(1, StoreFaults(refused=1.0))
    store = of(simulated)
    with pytest.raises(
        StoreError, match=r"get of sim://store/a/b had no clear answer in 30 s: 503"
    ) as caught:
        store.get("a/b")
    assert not caught.value.is_rejected
    assert 25 < simulated.now_s() < 40
    assert store.counts["get"] > 5


def test_no_attempt_begins_after_the_store_was_told_to_give_up():
    simulated = SimObjects(1, StoreFaults(refused=1.0))
    store, told = of(simulated), []

    def between(*_request):
        if simulated.now_s() > 5 and not told:
            store.give_up_after(2)
            told.append(simulated.now_s())

    simulated.between = between
    with pytest.raises(StoreError, match=r"get of sim://store/a/b had no clear answer: 503"):
        store.get("a/b")
    assert simulated.now_s() < told[0] + 2 + 0.5
    simulated.faults = StoreFaults()
    simulated.objects["a/b"] = b"1"
    store.give_up_after(2)
    assert store.get("a/b") == b"1"
    simulated.sleep(3)
    with pytest.raises(
        StoreError, match=r"the request 'get' for sim://store/a/b was not sent, because the broker stops"
    ):
        store.get("a/b")


def test_a_server_that_is_silent_is_asked_once_in_each_attempt(monkeypatch):
    monkeypatch.setattr(cloud, "IDLE_S", 0.2)
    with serve_s3() as server:
        server.is_silent = True
        store = open_store("s3://bucket/prefix", Patience(limit_s=0), allow_http=True, options=server.options)
        for attempts in (1, 2):
            with pytest.raises(StoreError, match="get_range of s3://bucket/prefix/a had no clear answer"):
                store.get_range("a", 0, 1)
            assert server.silent_count == attempts


def test_what_is_rejected_is_not_repeated():
    simulated = SimObjects(1, is_rejecting=True)
    store = of(simulated)
    with pytest.raises(
        StoreError, match=r"the request 'create' for sim://store/a/b was rejected: 403 Forbidden"
    ) as caught:
        store.create("a/b", b"")
    assert caught.value.is_rejected
    assert store.counts["create"] == 1


@pytest.fixture(scope="module")
def s3():
    with serve_s3() as server:
        yield server


def opened(s3):
    return open_store("s3://bucket/prefix", SHORT, allow_http=True, options=s3.options)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "fault",
    [
        S3Fault("put", status=503),
        S3Fault("put", status=503, is_applied=True),
        S3Fault("put", status=0),
        S3Fault("put", status=0, is_applied=True),
        S3Fault("put", status=409),
        S3Fault("put", status=500, count=5),
        S3Fault("get", status=0),
        S3Fault("get", status=500),
        S3Fault("get", cut_size=2),
        S3Fault("list", status=500),
        S3Fault("list", cut_size=50),
        S3Fault("delete", status=0, is_applied=True),
        S3Fault("begin", status=503),
        S3Fault("part", status=0),
        S3Fault("complete", status=503),
        S3Fault("complete", status=0, is_applied=True),
        S3Fault("begin", status=409),
        S3Fault("part", status=404),
        S3Fault("complete", status=404),
        S3Fault("get", status=409),
        S3Fault("delete", status=412),
    ],
    ids=str,
)
def test_faults_of_a_server_are_not_seen(s3, fault):
    s3.objects.clear()
    s3.fail(fault)
    store, large = opened(s3), bytes(20 << 20)
    store.create("a/b", b"content")
    assert store.get("a/b") == b"content"
    assert store.get_range("a/b", 1, 3) == b"ont"
    store.upload("a/large", lambda: [large], len(large))
    assert [one[:2] for one in store.list_after("a")] == [("a/b", 7), ("a/large", len(large))]
    store.delete("a/b")
    assert fault.count == 0, "the fault was met"
    assert sorted(s3.objects) == ["prefix/a/large"]


@pytest.mark.parametrize("status", [301, 400, 401, 403, 405, 411, 501])
@pytest.mark.parametrize("kind", ["get", "put", "list", "delete", "begin", "part"])
def test_a_refusal_that_no_repetition_changes_is_an_error_at_once(s3, kind, status):
    s3.objects.clear()
    store = opened(s3)
    store.create("a/b", b"content")
    fault = S3Fault(kind, status=status, code="ExpiredToken", count=100)
    calls = {
        "get": lambda: store.get("a/b"),
        "put": lambda: store.create("a/c", b"1"),
        "list": lambda: store.list_after("a"),
        "delete": lambda: store.delete("a/b"),
    }
    s3.fail(fault)
    with pytest.raises(StoreError, match="was rejected: ") as caught:
        calls.get(kind, lambda: store.upload("a/large", lambda: [bytes(17 << 20)], 17 << 20))()
    s3.clear_faults()
    assert caught.value.is_rejected
    assert 100 - fault.count <= (1 if status < 500 else 8), "obstore itself repeats a part"
    words = "another region: set AWS_REGION" if status == 301 else "ExpiredToken"
    assert words in str(caught.value)


@pytest.mark.parametrize("code", ["RequestTimeout", "IncompleteBody", "BadDigest", "SlowDown"])
def test_a_request_that_the_network_has_damaged_is_repeated(s3, code):
    s3.objects.clear()
    s3.fail(S3Fault("put", status=400, code=code))
    opened(s3).create("a/b", b"content")
    assert s3.objects == {"prefix/a/b": b"content"}


def test_an_address_without_tls_is_refused_at_once_and_the_setting_is_named(s3):
    store = open_store("s3://bucket/prefix", SHORT, options=s3.options)
    with pytest.raises(
        StoreError, match=r"stablelog\.remote\.allow\.http=true for a broker, or --allow-http"
    ) as caught:
        store.get("a/b")
    assert caught.value.is_rejected
    assert store.counts["get"] == 1


@pytest.mark.extended
def test_an_upload_of_which_the_store_keeps_less_is_an_error(s3):
    """Only an object of the size that was sent shows that an upload is done."""
    s3.objects.clear()
    s3.objects["prefix/a/b"] = b"an object of another size"
    s3.fail(S3Fault("complete", status=400, code="InternalError", count=100))
    with pytest.raises(StoreError, match="InternalError"):
        opened(s3).upload("a/b", lambda: [bytes(17 << 20)], 17 << 20)
    s3.clear_faults()


def test_a_bucket_that_is_not_there_is_rejected(s3):
    store = open_store("s3://other/prefix", SHORT, allow_http=True, options=s3.options)
    for call in (lambda: store.get("a/b"), lambda: store.create("a/b", b""), lambda: store.list_after("a")):
        with pytest.raises(StoreError, match="was rejected") as caught:
            call()
        assert caught.value.is_rejected


def test_a_listing_of_many_pages_is_whole(s3):
    s3.objects.clear()
    s3.objects.update({f"prefix/a/{number:05}": b"" for number in range(2_500)})
    listed = opened(s3).list_after("a", "a/00009")
    assert [one.key for one in listed] == [f"a/{number:05}" for number in range(10, 2_500)]


@pytest.mark.parametrize("lists_from", ["after", "at", "all"])
def test_a_listing_begins_after_a_key_although_the_store_begins_elsewhere(s3, monkeypatch, lists_from):
    """Azure begins at the key itself, and Azurite lists everything."""
    monkeypatch.setattr(s3, "lists_from", lists_from)
    s3.objects.clear()
    s3.objects.update({f"prefix/a/{number:05}": b"" for number in range(1_500)})
    listed = opened(s3).list_after("a", "a/00009")
    assert [one.key for one in listed] == [f"a/{number:05}" for number in range(10, 1_500)]
    assert len(opened(s3).list_after("a")) == 1_500


def test_files_that_a_crash_left_are_no_objects_and_go_after_a_day(tmp_path):
    store = open_store(tmp_path.as_uri())
    store.create("a/b", b"1")
    young, old = tmp_path / ".unfinished" / "young", tmp_path / ".unfinished" / "old"
    for left in (young, old):
        left.write_bytes(b"half")
    os.utime(old, (0, time.time() - 25 * 3600))
    again = open_store(tmp_path.as_uri())
    assert [one.key for one in again.list_after("a")] == ["a/b"]
    assert young.exists()
    assert not old.exists()


def test_a_directory_without_rights_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match=r"file:///.*/file/x cannot be opened: .*Not a directory"):
        open_store((tmp_path / "file" / "x").as_uri())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("bucket/prefix", "is no URL of an object store"),
        ("files:///data", "did you mean file"),
        ("s3:///prefix", "names no bucket; write s3://bucket/prefix"),
        ("file:///", "names no local directory"),
        ("file://host/data", "names no local directory"),
        ("s3://key:secret@bucket/prefix", "contains credentials"),
        ("s3://bucket/prefix?token=secret", "contains credentials or parameters"),
        ("https://account.blob.core.windows.net/c?sv=1&sig=secret", "contains credentials or parameters"),
        ("minio://key:secret@host/bucket", "contains credentials"),
        ("file:///data#1", "contains credentials or parameters"),
        ("s3://[x", "no URL of an object store"),
    ],
)
def test_a_url_that_cannot_be_opened_is_told(url, says):
    with pytest.raises(UsageError, match=says) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


class Never:
    """Requests of which each raises what a test says."""

    url = "never://"

    def __init__(self, *errors):
        self.errors = list(errors)

    def get(self, key):
        raise self.errors.pop(0)

    delete = get


def test_a_late_rejection_ends_the_attempts():
    store = ObjectStore(Never(UnclearError("503"), RejectedError("403")), sleep=lambda _: None)
    with pytest.raises(StoreError, match="403"):
        store.get("a")
    store = ObjectStore(Never(UnclearError("503"), MissingError()), sleep=lambda _: None)
    with pytest.raises(Exception, match="has no object a"):
        store.get("a")


def test_an_endpoint_with_credentials_is_refused():
    with pytest.raises(UsageError, match="endpoint of the store contains credentials") as caught:
        open_store("s3://bucket", options={"aws_endpoint": "http://key:secret@host"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kind", "config", "prefix"),
    [
        ("s3://bucket/a/b", "S3Store", {"bucket": "bucket", "unsigned_payload": "true"}, "a/b"),
        ("s3a://bucket", "S3Store", {"bucket": "bucket", "unsigned_payload": "true"}, None),
        ("gs://bucket/a/b", "GCSStore", {"bucket": "bucket"}, "a/b"),
        ("az://container/a/b", "AzureStore", {"container_name": "container"}, "a/b"),
        ("azure://container/a/b", "AzureStore", {"container_name": "container"}, "a/b"),
    ],
)
def test_a_url_of_a_cloud_opens_the_store_of_that_cloud_without_a_request(
    monkeypatch, url, kind, config, prefix
):
    """The proxy refuses all connections: a request would fail."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    stores, from_url = [], cloud.from_url
    monkeypatch.setattr(
        cloud, "from_url", lambda *args, **named: stores.append(from_url(*args, **named)) or stores[0]
    )
    store = open_store(url)
    (opened_store,) = stores
    assert type(opened_store).__name__ == kind
    assert opened_store.config == config
    assert opened_store.prefix == prefix
    assert store.url == url
    assert not store.counts


def test_a_container_of_azure_without_an_account_is_refused_by_its_url(monkeypatch):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match=r"az://container/prefix cannot be opened: .*[Aa]ccount"):
        open_store("az://container/prefix")


def test_an_object_whose_name_is_that_of_an_error_is_missing_and_not_rejected(s3):
    with pytest.raises(ObjectMissingError):
        opened(s3).get("NoSuchBucket/AccessDenied")


@pytest.mark.parametrize(("size", "part_count"), [(0, 0), (10, 0), (PART_SIZE, 0), (PART_SIZE + 1, 2)])
def test_an_object_of_one_part_is_uploaded_by_one_put(s3, size, part_count):
    s3.objects.clear()
    s3.counts.clear()
    content = random.Random(0).randbytes(size)
    opened(s3).upload("a/b", lambda: [content[:PART_SIZE], content[PART_SIZE:]], size)
    parts = {"begin": 1, "part": part_count, "complete": 1}
    assert s3.counts == (parts if part_count else {"put": 1})
    assert s3.objects == {"prefix/a/b": content}


def test_an_error_of_the_content_ends_an_upload_as_it_is(s3, tmp_path):
    def pieces():
        yield b"one"
        raise FileNotFoundError("the segment is gone")

    s3.objects.clear()
    for store in (opened(s3), open_store(tmp_path.as_uri())):
        with pytest.raises(FileNotFoundError, match="the segment is gone"):
            store.upload("a/b", pieces, 10)
        assert store.list_after("a") == []


def test_a_write_that_is_rejected_after_an_unclear_attempt_may_have_been_applied():
    requests = Never(UnclearError("503"), RejectedError("403"))
    with pytest.raises(StoreError, match="403") as caught:
        ObjectStore(requests, sleep=lambda _: None).delete("a")
    assert not caught.value.is_rejected


@pytest.mark.extended
def test_a_directory_that_cannot_be_read_is_not_empty(tmp_path, monkeypatch):
    store = open_store(tmp_path.as_uri(), SHORT)
    store.create("a/b/c", b"1")
    walk = os.walk

    def failing(directory, onerror):
        onerror(OSError(errno.EIO, "the disk failed"))
        return walk(directory, onerror=onerror)

    monkeypatch.setattr("stablelog.env.objects.directory.os.walk", failing)
    with pytest.raises(StoreError, match="the disk failed"):
        store.list_after("a")
    monkeypatch.undo()
    shutil.rmtree(tmp_path)
    with pytest.raises(StoreError, match="does not exist any more"):
        store.list_after("a")


def test_hidden_files_are_no_objects(tmp_path):
    store = open_store(tmp_path.as_uri())
    store.create("a/b", b"1")
    (tmp_path / "a" / ".nfs0001").write_bytes(b"")
    (tmp_path / ".unfinished" / "directory").mkdir()
    assert [one.key for one in open_store(tmp_path.as_uri()).list_after("a")] == ["a/b"]


def test_a_create_whose_directory_cannot_be_synced_has_failed(tmp_path, monkeypatch):
    store = open_store(tmp_path.as_uri(), SHORT)
    store.create("a/b", b"1")

    sync = os.fsync

    def failing(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "the disk failed")
        sync(descriptor)

    monkeypatch.setattr("stablelog.env.objects.directory.os.fsync", failing)
    with pytest.raises(StoreError, match="the disk failed"):
        store.create("a/c", b"1")


@pytest.mark.parametrize(
    ("url", "allow_http", "environment", "expected"),
    [
        ("s3://bucket", False, None, "true"),
        ("s3://bucket", True, None, None),
        ("s3://bucket", False, "false", None),
        ("gs://bucket", False, None, None),
    ],
)
def test_uploads_to_s3_are_hashed_only_without_tls(monkeypatch, url, allow_http, environment, expected):
    given = {}
    monkeypatch.setattr(cloud, "from_url", lambda _url, **arguments: given.update(arguments))
    if environment is None:
        monkeypatch.delenv("AWS_UNSIGNED_PAYLOAD", raising=False)
    else:
        monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", environment)
    CloudRequests(url, allow_http=allow_http)
    assert (given["config"] or {}).get("aws_unsigned_payload") == expected


def test_obstore_knows_the_setting_of_unsigned_uploads():
    CloudRequests("s3://bucket", allow_http=False)
    with pytest.raises(ValueError, match="no_such_setting"):
        CloudRequests("s3://bucket", allow_http=False, options={"no_such_setting": "true"})
