"""Requests to servers that do not end their response."""

import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from stablelog.env import http

pytestmark = pytest.mark.extended

LIMIT_S = 0.5


@contextmanager
def endless(first, again):
    """A server that sends bytes until the client has closed the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            client, _ = server.accept()
            with client:
                try:
                    client.sendall(first)
                    while again:
                        client.sendall(again)
                        time.sleep(LIMIT_S / 50)
                    client.recv(1 << 16)
                    client.recv(1)
                except OSError:
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield urlsplit(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join()


@pytest.mark.parametrize(
    ("first", "again"),
    [
        pytest.param(b"", b"", id="silence"),
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n", id="interim responses"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: ", b"b", id="header"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", b"b", id="body"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n", id="trailer"
        ),
    ],
)
def test_a_response_that_does_not_end_is_given_up(monkeypatch, first, again):
    monkeypatch.setattr(http, "TIMEOUT_S", LIMIT_S)
    failed = []

    def ask(url):
        try:
            http.send_request(url, {})
        except OSError as error:
            failed.append(http.failure_in_words(error))

    with endless(first, again) as url:
        # A thread, so that the test ends even if the request does not.
        asking = threading.Thread(target=ask, args=(url,), daemon=True)
        asking.start()
        asking.join(LIMIT_S * 10)
        assert not asking.is_alive()
    assert failed == [f"the server has not sent all of its response within {LIMIT_S:g} s"]
