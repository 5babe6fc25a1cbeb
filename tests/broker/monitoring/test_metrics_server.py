"""The HTTP server of the metrics has few threads, whatever clients do."""

import contextlib
import select
import socket
import threading
import time
from http.client import HTTPConnection

import pytest

from stablelog.broker.loop.threads import start_thread
from stablelog.broker.monitoring import metrics_server
from stablelog.broker.monitoring.metrics_server import CONNECTION_COUNT_MAX, MetricsServer
from tests.waiting import until


class Pages:
    """An application that answers all requests, those for /held only when they are released."""

    def __init__(self):
        self.released = threading.Event()

    def __call__(self, environ, start_response):
        if environ["PATH_INFO"] == "/held":
            self.released.wait(60)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"metrics\n"]


@pytest.fixture
def port():
    pages = Pages()
    server = MetricsServer("127.0.0.1", 0, pages)
    start_thread("metrics", server.serve_forever)
    yield server.server_port
    pages.released.set()
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def connections(port, content=b""):
    """As many connections as the server serves at a time; each has sent these bytes, and the server has a thread for
    each.
    """
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(CONNECTION_COUNT_MAX):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            opened[-1].sendall(content)
        until(lambda: thread_count() == CONNECTION_COUNT_MAX, "threads")
        yield opened


def scrape(port):
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        client.request("GET", "/metrics")
        return client.getresponse().read()


def thread_count():
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def is_closed(connection):
    """Wait until the server has closed a connection."""
    connection.settimeout(60)
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


HELD = b"GET /held HTTP/1.1\r\n\r\n"


def wait_for_requests(monkeypatch):
    """Returns a function that waits until the server has read a request from this many connections."""
    noted = []
    record = MetricsServer.record_request
    monkeypatch.setattr(
        MetricsServer, "record_request", lambda server, request: (record(server, request), noted.append(1))
    )
    return lambda count: until(lambda: len(noted) == count, "requests")


def test_few_requests_are_answered_at_a_time(port, monkeypatch):
    monkeypatch.setattr(metrics_server, "HEAD_S_MAX", 60.0)
    are_read = wait_for_requests(monkeypatch)
    with connections(port, HELD):
        are_read(CONNECTION_COUNT_MAX)
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as refused:
                assert is_closed(refused)
        assert thread_count() == CONNECTION_COUNT_MAX


def test_a_request_that_takes_long_makes_room(port, monkeypatch):
    are_read = wait_for_requests(monkeypatch)
    with connections(port, HELD) as held:
        are_read(CONNECTION_COUNT_MAX)
        monkeypatch.setattr(metrics_server, "PATIENCE_S", 0.0)
        assert scrape(port) == b"metrics\n"
        assert is_closed(held[0])


@pytest.mark.parametrize("content", [b"", b"GET /metrics HTTP/1.1\r\n"])
def test_the_oldest_connection_without_a_request_makes_room(port, monkeypatch, content):
    monkeypatch.setattr(metrics_server, "HEAD_S_MAX", 60.0)
    with connections(port, content) as idle:
        assert scrape(port) == b"metrics\n"
        assert is_closed(idle[0])
        assert [one for one in idle[1:] if select.select([one], [], [], 0)[0]] == []


def test_a_client_that_sends_no_whole_request_is_closed(port, monkeypatch):
    monkeypatch.setattr(metrics_server, "HEAD_S_MAX", 0.05)
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert is_closed(silent)
    with socket.create_connection(("127.0.0.1", port)) as slow, contextlib.suppress(ConnectionError):
        deadline_s = time.monotonic() + 60
        while not select.select([slow], [], [], 0.01)[0]:  # each byte in time, and the whole late
            assert time.monotonic() < deadline_s, "the connection stays open"
            slow.sendall(b"x")
    until(lambda: thread_count() == 0, "threads")
