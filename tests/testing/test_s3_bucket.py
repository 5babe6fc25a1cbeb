"""The bucket of the S3 server for tests: conditional puts, ranges, listings in pages, and uploads in parts."""

import re

import pytest

from stablelog.testing.s3_bucket import KEYS_MAX, S3Bucket
from stablelog.testing.s3_messages import S3Request


def ask(bucket, method, key="", query=None, body=b"", name="b", **headers):
    return bucket.apply(S3Request(method, name, key, query or {}, headers, body))


def listed(bucket, **query):
    answer = ask(bucket, "GET", query={name.replace("_", "-"): value for name, value in query.items()})
    found = re.findall(r"<(?:Key|CommonPrefixes><Prefix)>(.*?)</", answer.body.decode())
    return found, re.findall("<NextContinuationToken>(.*?)</", answer.body.decode())


def test_a_conditional_put_creates_an_object_once():
    bucket = S3Bucket("b")
    for status, body in ((200, b"one"), (412, b"two")):
        assert ask(bucket, "PUT", "k", body=body, **{"if-none-match": "*"}).status == status
    assert bucket.objects == {"k": b"one"}
    bucket.ignores_conditions = True
    assert ask(bucket, "PUT", "k", body=b"two", **{"if-none-match": "*"}).status == 200
    assert bucket.objects == {"k": b"two"}


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ("", 200, b"0123456789"),
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-2", 206, b"89"),
    ],
)
def test_a_get_returns_the_range(wanted, status, body):
    answer = ask(S3Bucket("b", {"k": b"0123456789"}), "GET", "k", range=wanted)
    assert (answer.status, answer.body) == (status, body)


def test_a_head_has_the_size_and_no_body():
    answer = ask(S3Bucket("b", {"k": b"0123456789"}), "HEAD", "k")
    assert (answer.status, answer.body, answer.size) == (200, b"", 10)


def test_what_does_not_exist_is_refused():
    bucket = S3Bucket("b", {"k": b"x"})
    assert ask(bucket, "GET", "other").status == 404
    assert ask(bucket, "GET", "k", name="other").status == 404
    assert ask(bucket, "GET", "k", range="bytes=1-").status == 416
    assert ask(bucket, "PUT", "k", {"uploadId": "u", "partNumber": "1"}).status == 404
    assert ask(bucket, "PATCH", "k").status == 405


def test_a_listing_begins_after_a_key_and_shows_directories_once():
    bucket = S3Bucket("b", dict.fromkeys(["a/1", "a/2", "b/x/1", "b/x/2", "b/y"], b""))
    assert listed(bucket, start_after="a/1") == (["a/2", "b/x/1", "b/x/2", "b/y"], [])
    assert listed(bucket, prefix="b/", delimiter="/") == (["b/x/", "b/y"], [])
    bucket.lists_from = "at"
    assert listed(bucket, start_after="b/y") == (["b/x/1", "b/x/2", "b/y"], [])
    bucket.lists_from = "all"
    assert listed(bucket, start_after="b/y") == (sorted(bucket.objects), [])


def test_a_long_listing_comes_in_pages():
    bucket = S3Bucket("b", {f"{number:04}": b"" for number in range(KEYS_MAX + 1)})
    first, (token,) = listed(bucket)
    assert (len(first), token) == (KEYS_MAX, first[-1])
    assert listed(bucket, continuation_token=token) == ([f"{KEYS_MAX:04}"], [])


def test_an_upload_is_an_object_once_it_is_complete():
    bucket = S3Bucket("b")
    begun = ask(bucket, "POST", "k", {"uploads": ""})
    upload = re.findall("<UploadId>(.*?)</", begun.body.decode())[0]
    for number, body in (("2", b"two"), ("1", b"one")):
        assert ask(bucket, "PUT", "k", {"uploadId": upload, "partNumber": number}, body).status == 200
    assert (bucket.objects, bucket.unfinished_uploads) == ({}, 1)
    assert ask(bucket, "POST", "k", {"uploadId": upload}).status == 200
    assert (bucket.objects, bucket.unfinished_uploads) == ({"k": b"onetwo"}, 0)
    assert ask(bucket, "POST", "k", {"uploadId": upload}).status == 404


def test_an_upload_that_is_aborted_leaves_nothing():
    bucket = S3Bucket("b")
    begun = ask(bucket, "POST", "k", {"uploads": ""})
    upload = re.findall("<UploadId>(.*?)</", begun.body.decode())[0]
    assert ask(bucket, "DELETE", "k", {"uploadId": upload}).status == 204
    assert (bucket.objects, bucket.unfinished_uploads) == ({}, 0)


def test_several_objects_are_deleted_by_one_request():
    bucket = S3Bucket("b", {"a&b": b"", "c": b"", "d": b""})
    body = b"<Delete><Object><Key>a&amp;b</Key></Object><Object><Key>c</Key></Object></Delete>"
    assert ask(bucket, "POST", "", {"delete": ""}, body).status == 200
    assert bucket.objects == {"d": b""}
    assert ask(bucket, "DELETE", "d").status == 204
    assert bucket.objects == {}
