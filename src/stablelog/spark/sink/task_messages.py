"""The messages between the driver and the tasks of a write."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from pyspark.sql.datasource import WriterCommitMessage

from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.core.security import SecuritySettings
from stablelog.errors import ProducerFencedError, RefusedError, UsageError
from stablelog.spark.options import WriteOptions

EXACTLY_ONCE = "exactly-once"
APP_ID_SIZE_MAX = 128  # bytes
# Topics with longer names are written as their beginning and a digest in the key of a joint commit, which is limited.
_TARGET_SIZE_MAX = 100
Child = tuple[str, int, int]  # the transactional id, producer id and producer epoch of a task's transaction


@dataclass(frozen=True, slots=True)
class JointWrite:
    """The joint commit to which the rows of a task belong: one commit of the transactions of all tasks of a write.

    Attributes:
        key: the name of the writer: the id of the query, or a text for the job and its target.
        version: the number of the joint commit under this key; for a stream, the number of the micro-batch.
        run: a text that identifies this start of the query or job; the same in all tasks.
        order: a number that is greater for later starts of the query or job with the same key.
        retention_ms: how long the coordinator remembers the key.
        in_sequence: whether the versions are committed one after another, as in a stream: a version begins only after
            the previous one is committed.
        write: the batch write in words, for messages; empty for a stream.
    """

    key: str
    version: int
    run: str
    order: int = joint.NO_ORDER
    retention_ms: int = joint.FOR_EVER
    in_sequence: bool = False
    write: str = ""

    def __str__(self) -> str:
        if self.in_sequence:
            return f"micro-batch {self.version} of query {self.key}"
        return f"version {self.version} of {self.write or self.key}"


def application_key(app_id: str, topic: str | None) -> str:
    """Return the key of the joint commits of a job's batch writes to one target: a name under which they are numbered.
    (A joint commit commits the transactions of all tasks of a write together.) As in Delta Lake, a `txnVersion` counts
    for one `txnAppId` and one target: the same job may write the same version to several topics.

    Args:
        app_id: the option `txnAppId`.
        topic: the topic of all rows; None if a column has the topic of each row. All such writes are one target.

    Raises:
        UsageError: the txnAppId is too long.
    """
    size = len(app_id.encode())
    if size > APP_ID_SIZE_MAX:
        raise UsageError(
            f"txnAppId has {size} bytes, and at most {APP_ID_SIZE_MAX} are allowed: use a shorter name"
        )
    target = topic or ""
    if len(target) > _TARGET_SIZE_MAX:
        digest = hashlib.sha256(target.encode()).hexdigest()[:32]
        target = f"{target[: _TARGET_SIZE_MAX - 33]}~{digest}"  # no name of a topic contains ~
    return f"{app_id}@{target}"  # no name of a topic contains @


@dataclass(frozen=True)
class WriteReport(WriterCommitMessage):
    """The message that a task sends to the driver after its rows are written.

    Attributes:
        part: the joint commit to which the task's rows belong, one commit of the transactions of all tasks; None if the
            task's transaction is committed alone (guarantee=at-least-once).
        child: the task's transaction; None if the task had no rows.
        record_count: the number of rows written.
        ends: topic, partition and the offset after the task's last row in it.
        is_skipped: whether the task has written nothing, because its micro-batch or write had been committed before.
        digest: if the task was skipped, the text that was stored with the earlier commit and identifies its rows
            (`written_ends`); empty if unknown.
        last_version: the greatest version that had been committed under the key before; only if the task was skipped.
    """

    part: JointWrite | None
    child: Child | None
    record_count: int
    ends: tuple[tuple[str, int, int], ...] = ()
    is_skipped: bool = False
    digest: str = ""
    last_version: int = -1


_clusters: dict[tuple[int, str, str, int, SecuritySettings], BlockingCluster] = {}


def shared_cluster(options: WriteOptions) -> BlockingCluster:
    """Return this process's client of the brokers for these options. The tasks that run in one worker process share its
    connections.
    """
    known_by = (os.getpid(), options.bootstrap, options.client_id, options.timeout_ms, options.security)
    if known_by not in _clusters:
        _clusters[known_by] = BlockingCluster(
            options.bootstrap,
            client_id=options.client_id,
            deadline_s=options.timeout_ms / 1000,
            security=options.security,
        )
    return _clusters[known_by]


@contextlib.contextmanager
def explaining_fences(options: WriteOptions, part: JointWrite) -> Iterator[None]:
    """Return a context manager that explains an error PRODUCER_FENCED of its block to the user of the query: the
    message of the error also names the possible causes. It yields nothing.

    Raises:
        RefusedError: the broker has refused a request.
        ProducerFencedError: the broker has refused a request with PRODUCER_FENCED. The message names the possible
            causes.
    """
    try:
        yield
    except RefusedError as refused:
        if refused.code is not ErrorCode.producer_fenced:
            raise
        raise ProducerFencedError(
            refused.code,
            f"{refused}. Nothing of version {part.version} was committed by this run. Either another driver uses the same checkpoint or txnAppId: stop one of them. Or a task's transaction was open for longer than transactionTimeout ({options.transaction_timeout_ms} ms): increase it",
        ) from refused
