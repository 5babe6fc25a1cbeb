"""`stablelog health`: ask a broker for its health, at the port of its metrics.

A container runs the command every few seconds. So it imports neither the library of the other commands nor that of HTTP:
it sends one request, and reads an answer of known form.
"""

import contextlib
import json
import socket
import sys
import time
from pathlib import Path
from typing import Final

from stablelog.cli.exit_codes import NoBrokerError
from stablelog.cli.output import FINDINGS, printable
from stablelog.cli.properties import read_properties
from stablelog.errors import UsageError, in_words
from stablelog.json_text import parse_json

LOOPBACK: Final = "127.0.0.1"
PORT: Final = 9644  # of the examples in the documents
ADDRESS: Final = f"{LOOPBACK}:{PORT}"
TIMEOUT_S: Final = 10.0
TIMEOUT_S_MAX: Final = 3600
# The hosts by which a broker listens on all addresses of its machine, and by which a program there reaches it.
REACHABLE: Final = {"": LOOPBACK, "0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - compared, not bound
ANSWER_SIZE_MAX: Final = 1 << 16
YES, NO = 200, 503


def run_health(
    address: str | None, config: Path | None, timeout: float | None, *, is_ready: bool, as_json: bool
) -> None:
    """Print whether a broker is alive, or with `is_ready` whether it is ready for clients. If it is not, print the
    reasons and end the process with the exit code FINDINGS.

    Args:
        address: host and port of the broker's metrics, with a colon between them; None for that of `config`.
        config: the broker's file of settings; None to use ADDRESS if `address` is None, too.
        timeout: how many seconds to wait for the answer; None for TIMEOUT_S.
        is_ready: whether to ask if the broker is ready.
        as_json: whether to print JSON.

    Raises:
        UsageError: the address or the file is not valid, both are given, the file sets no port of the metrics, or
            something else than a broker answers.
        NoBrokerError: no broker answers in time.
        SystemExit: the broker is not alive, or not ready.
    """
    if address is not None and config is not None:
        raise UsageError("give --address or --config, not both: each says where the broker answers")
    if address is not None:
        at = parse_address(address)
    else:
        at = parse_address(ADDRESS) if config is None else address_in(config, read_properties(config))
    timeout_s = TIMEOUT_S if timeout is None else timeout
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise UsageError(f"--timeout is how many seconds to wait: above 0, and at most {TIMEOUT_S_MAX}")
    content = _ask(at, "/readyz" if is_ready else "/healthz", timeout_s)
    try:
        status, reasons = parse_answer(content)
    except ValueError as error:
        raise UsageError(
            f"{_in_words(at)} is not the metrics port of a broker of this release, because its answer is another: name "
            "the host and stablelog.metrics.port of the broker by --address"
        ) from error
    word = "ready" if is_ready else "alive"
    if as_json:
        text = json.dumps({word: status == YES, "reasons": reasons})
    else:
        text = word if status == YES else f"not {word}: {printable(', '.join(reasons))}"
    sys.stdout.write(f"{text}\n")
    if status != YES:
        sys.exit(FINDINGS)


def parse_address(text: str) -> tuple[str, int]:
    """Parse the text HOST:PORT.

    Raises:
        UsageError: it is not an address.
    """
    host, _, port = text.rpartition(":")
    try:
        return _parse_host(host), _parse_port(port)
    except ValueError as error:
        raise UsageError(
            f"--address {text!r} is not an address: write HOST:PORT, such as {ADDRESS}"
        ) from error


def address_in(path: Path, settings: dict[str, str]) -> tuple[str, int]:
    """Return the address at which a broker with these settings serves its health. `path` is the file of the settings.

    Raises:
        UsageError: the broker has no port of the metrics, or a free one, which the settings do not say; or the host or
            the port is not valid.
    """
    port = settings.get("stablelog.metrics.port", "-1")
    if port.startswith("-"):
        raise UsageError(
            f"{path} sets no stablelog.metrics.port, where a broker answers: set it, such as to {PORT}"
        )
    if port == "0":
        raise UsageError(
            f"{path} sets stablelog.metrics.port=0, a free port: name the port in the broker's log by --address"
        )
    host = settings.get("stablelog.metrics.host", LOOPBACK)
    try:
        number = _parse_port(port)
    except ValueError as error:
        raise UsageError(
            f"{path} sets stablelog.metrics.port={port!r}, which is no port: set a number, such as {PORT}"
        ) from error
    try:
        return _parse_host(host), number
    except ValueError as error:
        raise UsageError(
            f"{path} sets stablelog.metrics.host={host!r}, which is no host: set a name or an IP address"
        ) from error


def _parse_host(text: str) -> str:
    host = text.strip("[]")
    host.encode("idna")  # as a look-up does it: a label is neither empty nor longer than 63 characters
    if "\0" in host:
        raise ValueError("a null character in a host")
    return REACHABLE.get(host, host)


def _parse_port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ValueError("not a port")
    return int(text)


def parse_answer(content: bytes) -> tuple[int, list[str]]:
    """Return the status of an answer over HTTP, YES or NO, and the reasons for it.

    Raises:
        ValueError: it is not the answer of a broker.
    """
    head, _, body = content.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 3 or not words[0].startswith(b"HTTP/1."):
        raise ValueError("not an answer over HTTP")
    status = int(words[1])
    value = parse_json(body)
    if status not in (YES, NO) or not isinstance(value, dict) or not isinstance(value.get("reasons"), list):
        raise ValueError("not an answer of a broker")
    return status, [str(reason) for reason in value["reasons"]]


def _ask(at: tuple[str, int], path: str, timeout_s: float) -> bytes:
    deadline_s = time.monotonic() + timeout_s
    request = f"GET {path} HTTP/1.0\r\nHost: {_in_words(at)}\r\n\r\n"
    content = b""
    try:
        with (
            socket.create_connection(at, timeout_s) as connection,
            # The server may close the connection: its answer is then empty.
            contextlib.suppress(ConnectionResetError, BrokenPipeError),
        ):
            connection.sendall(request.encode())
            while len(content) < ANSWER_SIZE_MAX:
                connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
                piece = connection.recv(ANSWER_SIZE_MAX)
                if not piece:
                    break
                content += piece
    except TimeoutError as error:
        raise NoBrokerError(f"{_in_words(at)} has not answered for {timeout_s:g} s") from error
    except OSError as error:
        raise NoBrokerError(
            f"no broker answers at {_in_words(at)}: {in_words(error)}. The broker does not run, or its "
            "stablelog.metrics.port is another one or not set"
        ) from error
    if not content:
        raise NoBrokerError(
            f"{_in_words(at)} closed the connection without an answer: it has too many connections, or is not the "
            "metrics port of a broker"
        )
    return content


def _in_words(at: tuple[str, int]) -> str:
    host, port = at
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
