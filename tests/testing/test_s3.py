"""The S3 server for tests: what its answers say of an object."""

import urllib.request

from stablelog.testing.s3 import serve_s3


def etag_of(s3, key):
    with urllib.request.urlopen(f"http://127.0.0.1:{s3.port}/bucket/{key}") as answer:
        answer.read()
        return answer.headers["ETag"]


def test_the_etag_belongs_to_the_content():
    with serve_s3() as s3:
        s3.objects["key"] = b"one"
        one = etag_of(s3, "key")
        assert etag_of(s3, "key") == one
        s3.objects["key"] = b"two"
        assert etag_of(s3, "key") != one
        s3.objects["key"] = b"one"
        assert etag_of(s3, "key") == one
