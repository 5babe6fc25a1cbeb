"""The Spark job as the scene sees it: a child process, and the micro-batches that it tells of."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.busy import EXIT_CODE, LateError
from demo.children import Children
from demo.tasks import Task

BY_OFFSETS, BY_CUT = QUERIES = ("by offsets", "by cut")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of one of the queries.

    Attributes:
        began_at: when its rows were handed out, in seconds since 1970.
        ended_at: when they were joined.
        record_count: what it held.
        transaction_count: of which so many transactions.
        torn: the names of those that it does not hold whole.
        bare_count: flights that found no weather, though their transaction had written it.
        doomed_count: records of transactions that were not to be committed.
    """

    query: str
    batch_id: int
    began_at: float
    ended_at: float
    record_count: int
    transaction_count: int
    torn: list[str]
    bare_count: int
    doomed_count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A query's micro-batches together. A transaction in three pieces is torn once."""

    batch_count: int
    record_count: int
    torn: frozenset[str]
    bare_count: int
    doomed_count: int


def summarize(batches: Sequence[MicroBatch]) -> Summary:
    """Micro-batches of a query together."""
    return Summary(
        len(batches),
        sum(batch.record_count for batch in batches),
        frozenset(name for batch in batches for name in batch.torn),
        sum(batch.bare_count for batch in batches),
        sum(batch.doomed_count for batch in batches),
    )


class SparkWatch(Task):
    """Starts the job, and listens to it.

    Args:
        children: who starts it.
        bootstrap: where the log is.
        checkpoint: where both queries keep their own.
        offsets_per_batch: maxOffsetsPerTrigger of both.
    """

    def __init__(self, children: Children, bootstrap: str, checkpoint: Path, offsets_per_batch: int) -> None:
        super().__init__("the Spark job")
        self.offsets_per_batch = offsets_per_batch
        self._log = checkpoint.with_name("spark.log")
        self._process = children.start(
            "demo.cuts.spark_job", bootstrap, str(checkpoint), str(offsets_per_batch), errors=self._log
        )
        self._batches: dict[tuple[str, int], MicroBatch] = {}

    def work(self) -> None:
        """Listen until the job ends.

        Raises:
            LateError: a time limit of the job has passed.
            ChildProcessError: it has failed otherwise.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            batch = MicroBatch(**json.loads(line))
            self._batches[batch.query, batch.batch_id] = batch  # once, also if Spark has repeated it
        code = self._process.wait()
        if code != 0:
            last_words = self._log.read_text()[-4000:]
            if code == EXIT_CODE:
                raise LateError(f"it came too late\n{last_words}")
            raise ChildProcessError(f"its last words:\n{last_words}")

    def is_warm(self) -> bool:
        """Whether each query has had a micro-batch: its first one takes seconds."""
        return all(self.batches(query) for query in QUERIES)

    def end_behind(self, record_count: int) -> None:
        """Let the job end when each query has had so many records."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{record_count}\n")
        self._process.stdin.flush()

    def batches(self, query: str) -> list[MicroBatch]:
        """The micro-batches of a query so far."""
        return [batch for batch in tuple(self._batches.values()) if batch.query == query]

    def summary(self, query: str) -> Summary:
        """What a query has had so far."""
        return summarize(self.batches(query))
