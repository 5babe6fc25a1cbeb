"""Which options `format("stablelog")` takes. Names are those of Spark's Kafka connector where the meaning is the same."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from stablelog.errors import InvalidConfig

# name -> what it does. docs/spark.md lists them, and a test holds that list to this table.
OPTIONS = {
    "kafka.bootstrap.servers": "The brokers. `bootstrap` is the same.",
    "bootstrap": "The brokers.",
    "subscribe": "The topics, parted by commas.",
    "isolation": "read_committed (default) or read_uncommitted.",
    "includeHeaders": "Whether there is a column `headers` (default false).",
}
ISOLATIONS = ("read_committed", "read_uncommitted")
SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for."""

    bootstrap: str
    topics: tuple[str, ...]
    isolation: str
    include_headers: bool


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read.

    Raises:
        InvalidConfig: one is unknown, missing, contradictory or out of range; names it and the nearest right one.
    """
    known = {name.lower(): name for name in OPTIONS}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(OPTIONS)}"
            raise InvalidConfig(f"stablelog has no option {name!r}{hint}")
        values[known[name.lower()]] = value
    if "bootstrap" in values and "kafka.bootstrap.servers" in values:
        raise InvalidConfig("bootstrap and kafka.bootstrap.servers are the same option: give one of them")
    bootstrap = values.get("bootstrap") or values.get("kafka.bootstrap.servers")
    if not bootstrap:
        raise InvalidConfig("say where the broker is: option kafka.bootstrap.servers")
    topics = tuple(topic.strip() for topic in values.get("subscribe", "").split(",") if topic.strip())
    if not topics:
        raise InvalidConfig("say what to read: option subscribe, one or more topics")
    isolation = values.get("isolation", ISOLATIONS[0])
    if isolation not in ISOLATIONS:
        raise InvalidConfig(f"isolation={isolation!r}: {' or '.join(ISOLATIONS)}")
    headers = values.get("includeHeaders", "false").lower()
    if headers not in ("true", "false"):
        raise InvalidConfig(f"includeHeaders={headers!r}: true or false")
    return ReadOptions(bootstrap, topics, isolation, headers == "true")
