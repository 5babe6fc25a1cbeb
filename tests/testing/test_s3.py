"""The S3 server for tests: what its answers say of an object, and how it stops a request or all of them."""

import http.client
import os
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from stablelog.testing.s3 import S3Fault, S3Hold, serve_s3
from tests.waiting import until


def asked(s3, method, key, body=b""):
    """The status of the answer to a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", s3.port, timeout=60)
    try:
        connection.request(method, f"/bucket/{key}", body)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


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


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_held_request_waits_before_or_after_it_is_applied(threads, is_applied):
    with serve_s3() as s3:
        hold = s3.hold(S3Hold("put", r"^a/\d$", is_applied=is_applied, number=2))
        assert asked(s3, "PUT", "b/1") == 200
        assert asked(s3, "PUT", "a/1") == 200
        answer = threads.submit(asked, s3, "PUT", "a/2", b"x")
        assert hold.wait() == "a/2"
        assert asked(s3, "PUT", "a/3") == 200, "only one request is held"
        assert ("a/2" in s3.objects) == is_applied
        assert not answer.done()
        hold.release()
        assert answer.result() == 200
        assert s3.objects["a/2"] == b"x"


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_dropped_request_has_no_answer(threads, is_applied):
    with serve_s3() as s3:
        hold = s3.hold(S3Hold("put", "a", is_applied=is_applied))
        answer = threads.submit(asked, s3, "PUT", "a")
        hold.wait()
        hold.drop()
        assert isinstance(answer.exception(), ConnectionError)
        assert ("a" in s3.objects) == is_applied


def test_a_test_that_waits_for_another_request_is_told():
    with serve_s3() as s3, pytest.raises(TimeoutError, match="no put request for a key like 'a'"):
        s3.hold(S3Hold("put", "a")).wait(0.01)


def test_the_server_stops_although_requests_are_held_or_have_come_in_silence(threads):
    with serve_s3() as s3:
        hold = s3.hold(S3Hold("get"))
        held = threads.submit(asked, s3, "GET", "a")
        hold.wait()
        s3.is_silent = True
        unheard = threads.submit(asked, s3, "PUT", "b")
        until(lambda: s3.silent_count == 1, "the request does not come")
    assert isinstance(held.exception(), ConnectionError)
    assert isinstance(unheard.exception(), ConnectionError)
    assert not s3.objects


def test_a_request_in_silence_is_lost_also_when_the_server_speaks_again(threads):
    with serve_s3() as s3:
        s3.is_silent = True
        unheard = threads.submit(asked, s3, "PUT", "a")
        until(lambda: s3.silent_count == 1, "the request does not come")
        s3.is_silent = False
        assert asked(s3, "PUT", "b") == 200
        assert not unheard.done()
        s3.break_connections()
        assert isinstance(unheard.exception(), ConnectionError)
        assert list(s3.objects) == ["b"]


def test_a_server_that_refuses_connections_accepts_them_again_at_the_same_port():
    with serve_s3() as s3:
        assert asked(s3, "PUT", "a") == 200
        for _ in range(3):
            s3.refuse()
            with pytest.raises(ConnectionRefusedError):
                asked(s3, "GET", "a")
            s3.accept()
            assert asked(s3, "GET", "a") == 200


def test_missing_rights_are_a_fault():
    with serve_s3() as s3:
        s3.fail(S3Fault("get", status=403))
        assert asked(s3, "GET", "a") == 403
        assert asked(s3, "GET", "a") == 404


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such signals")
def test_signals_let_the_program_refuse_connections_and_accept_them():
    command = [sys.executable, "-m", "stablelog.testing.s3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()

            def answers():
                try:
                    urllib.request.urlopen(f"{url}/bucket/?list-type=2").close()
                except OSError as error:
                    return error
                return None

            assert answers() is None
            os.kill(process.pid, signal.SIGUSR1)
            until(answers, "it accepts connections")
            os.kill(process.pid, signal.SIGUSR2)
            until(lambda: answers() is None, "it refuses connections")
        finally:
            process.terminate()
