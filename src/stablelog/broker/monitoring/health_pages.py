"""The pages `/healthz` and `/readyz` of the metrics' HTTP server, as a WSGI application.

A page is answered in a thread of the server, so that there is an answer also while the event loop does not run. Status
200 means yes; 503 means no, and the body, a JSON object, has the reasons.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from stablelog.broker.monitoring.health import (
    HealthFacts,
    ReadyQuestion,
    parse_ready_question,
    reasons_not_alive,
    reasons_not_ready,
)
from stablelog.errors import UnavailableError

METRICS_PATH: Final = "/metrics"
ALIVE_PATH: Final = "/healthz"
READY_PATH: Final = "/readyz"
PATHS: Final = (METRICS_PATH, ALIVE_PATH, READY_PATH)
METHODS: Final = ("GET", "HEAD")
Wsgi = Callable[[Any, Any], Iterable[bytes]]


class HealthPages:
    """The pages of health of one broker.

    Args:
        silence_s: returns for how many seconds the event loop has not answered.
        read_facts: reads the state of the broker on its event loop. It raises UnavailableError if the loop does not
            answer in time.
        metrics: the application for the page of the metrics.
    """

    def __init__(
        self, silence_s: Callable[[], float], read_facts: Callable[[], HealthFacts], metrics: Wsgi
    ) -> None:
        self._silence_s = silence_s
        self._read_facts = read_facts
        self._metrics = metrics

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        """Answer one HTTP request."""
        path = environ.get("PATH_INFO")
        if path == METRICS_PATH:
            return self._metrics(environ, start_response)
        method = environ.get("REQUEST_METHOD")
        status, value = self._page(path, method, environ.get("QUERY_STRING", ""))
        body = (json.dumps(value) + "\n").encode()
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [] if method == "HEAD" else [body]

    def _page(self, path: str, method: str, query: str) -> tuple[str, dict[str, object]]:
        """Return the status of a page, and the JSON object of its body."""
        if path not in PATHS:
            return "404 Not Found", {"error": f"the paths are {', '.join(PATHS)}"}
        if method not in METHODS:
            return "405 Method Not Allowed", {"error": "the method is GET or HEAD"}
        try:
            question = parse_ready_question(query if path == READY_PATH else "")
        except ValueError as error:
            return "400 Bad Request", {"error": str(error)}
        reasons = reasons_not_alive(self._silence_s())
        if path == READY_PATH and not reasons:
            reasons = self._not_ready(question)
        word = "alive" if path == ALIVE_PATH else "ready"
        return ("503 Service Unavailable" if reasons else "200 OK"), {word: not reasons, "reasons": reasons}

    def _not_ready(self, question: ReadyQuestion) -> list[str]:
        try:
            return reasons_not_ready(self._read_facts(), question)
        except UnavailableError as error:
            return [str(error)]
