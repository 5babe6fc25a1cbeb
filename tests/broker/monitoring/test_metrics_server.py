"""The HTTP server of the metrics has few threads, whatever clients do."""

import contextlib
import socket
import threading
from http.client import HTTPConnection

import pytest

from stablelog.broker.loop.threads import start_thread
from stablelog.broker.monitoring import metrics_server
from stablelog.broker.monitoring.metrics_server import CONNECTION_COUNT_MAX, MetricsServer
from tests.waiting import until


def answer(_environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"metrics\n"]


@pytest.fixture
def port():
    server = MetricsServer("127.0.0.1", 0, answer)
    start_thread("metrics", server.serve_forever)
    yield server.server_port
    server.shutdown()
    server.server_close()


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


@pytest.mark.extended
def test_few_connections_are_served_at_a_time(port):
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(CONNECTION_COUNT_MAX):
            held.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            held[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
        until(lambda: thread_count() == CONNECTION_COUNT_MAX, "threads")
        for _ in range(3):
            assert is_closed(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
        assert thread_count() == CONNECTION_COUNT_MAX
        held.pop().close()
        until(lambda: thread_count() == CONNECTION_COUNT_MAX - 1, "threads")
        assert scrape(port) == b"metrics\n"


@pytest.mark.extended
def test_a_connection_that_is_open_for_long_makes_room(port, monkeypatch):
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(CONNECTION_COUNT_MAX)
        ]
        until(lambda: thread_count() == CONNECTION_COUNT_MAX, "threads")
        monkeypatch.setattr(metrics_server, "PATIENCE_S", 0.0)
        assert scrape(port) == b"metrics\n"
        assert any(is_closed(one) for one in held[:1])


def test_a_client_that_sends_nothing_is_closed(port, monkeypatch):
    monkeypatch.setattr(metrics_server.Handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert is_closed(silent)
    until(lambda: thread_count() == 0, "threads")
