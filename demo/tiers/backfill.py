"""Spark reads the topic from the objects, while no broker runs.

The job is a process of its own. It starts its session in advance, because this takes seconds, and begins to read when it
is told a line. It compares each record with its row of the source file, and prints one line of JSON.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demo.busy import EXIT_CODE, LateError, run_child
from demo.children import Children
from demo.flights import read_flights
from demo.tiers import CREDENTIAL, REGION, STORE_URL, TOPIC
from demo.tiers.proof import Place, Reading, Source


def load(spark: Any, url: str, topic: str, store: Mapping[str, str]) -> Any:
    """Return the records of a topic in an object store as a DataFrame, with the columns of a batch read.

    Args:
        spark: the session.
        url: the broker's `stablelog.remote.url`.
        topic: the name of the topic.
        store: options of the object store, by name: `endpoint`, `access_key_id`.
    """
    reader = spark.read.format("stablelog").option("subscribe", topic)
    for name, value in store.items():
        reader = reader.option(f"store.{name}", value)
    return reader.load(url)


def store_options(endpoint: str) -> dict[str, str]:
    """Return the options that reach the scene's store."""
    return {
        "endpoint": endpoint,
        "access_key_id": CREDENTIAL,
        "secret_access_key": CREDENTIAL,
        "region": REGION,
        "allow_http": "true",
    }


class Backfill:
    """The Spark job as the scene sees it.

    Args:
        children: starts the process.
        endpoint: the address of the store.
        row_count_max: rows of the source file; None for all.
        log: the file for what Spark writes to its standard error.
    """

    def __init__(self, children: Children, endpoint: str, row_count_max: int | None, log: Path) -> None:
        rows = [] if row_count_max is None else ["--rows", str(row_count_max)]
        self._process = children.start("demo.tiers.backfill", endpoint, *rows, errors=log)
        self._log = log

    def wait_until_ready(self) -> None:
        """Wait until the session has started."""
        self._line()

    def read(self) -> Reading:
        """Read the topic, and return its records.

        Raises:
            LateError: a time limit of the job has passed.
            SystemExit: the job has failed otherwise.
        """
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        said = json.loads(self._line())
        return Reading([Place(*place) for place in said.pop("places")], **said)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last_words = self._log.read_text()[-4000:]
            if self._process.wait() == EXIT_CODE:
                raise LateError(f"the Spark job came too late\n{last_words}")
            raise SystemExit(f"the Spark job has failed. Its last words:\n{last_words}")
        return line


def main() -> None:
    """Run the job."""
    from demo.spark_session import in_time, quiet_session

    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint")
    parser.add_argument("--rows", type=int)
    given = parser.parse_args()
    spark = quiet_session("backfill")
    source = Source(list(read_flights(given.rows)))
    say("ready")
    if not sys.stdin.readline():  # the scene has ended
        return

    def read() -> Any:
        frame = load(spark, STORE_URL, TOPIC, store_options(given.endpoint))
        return frame.select("partition", "offset", "value").toArrow()

    columns = in_time("the read of the objects", read).to_pydict()
    reading = Reading()
    for partition, offset, value in zip(*columns.values(), strict=True):
        source.check(reading, Place(partition, offset), value)
    say(
        json.dumps(
            {
                "places": reading.places,
                "rows": reading.rows,
                "aborted_count": reading.aborted_count,
                "changed_count": reading.changed_count,
            }
        )
    )


def say(words: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(run_child(main))
