"""The store's process as the scene sees it: its address, and what it has counted."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from demo.children import Children
from demo.tiers import CREDENTIAL, REGION


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to the store, by the kinds of `demo.tiers.store`.

    Attributes:
        counts: requests by kind.
        sizes: bytes of these requests and of the answers, by kind.
    """

    counts: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)

    def since(self, earlier: "Requests") -> "Requests":
        """Return the requests after an earlier count."""
        return Requests(self.counts - earlier.counts, self.sizes - earlier.sizes)


class StoreWatch:
    """Starts the store's process and asks it for its counts."""

    def __init__(self, children: Children, delay_ms: float) -> None:
        self._process = children.start("demo.tiers.store", str(delay_ms))
        self.endpoint = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the object store's process has ended")
        return line.strip()

    def requests(self) -> Requests:
        """Return the requests since the start of the store."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said = json.loads(self._line())
        return Requests(Counter(said["requests"]), Counter(said["sizes"]))

    @contextlib.contextmanager
    def reachable(self) -> Iterator[None]:
        """Put the store's address into the environment, which brokers and commands inherit, while the block runs."""
        names = {
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ACCESS_KEY_ID": CREDENTIAL,
            "AWS_SECRET_ACCESS_KEY": CREDENTIAL,
            "AWS_REGION": REGION,
            "AWS_UNSIGNED_PAYLOAD": "true",
        }
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(names)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
