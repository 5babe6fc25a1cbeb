"""Reader of a query's checkpoint: the offsets at which a micro-batch ends, and a digest (hash) of the micro-batch's
plan, by which the sink notices that Spark has planned other rows under the same number.

It reads the checkpoint's log of offsets and never writes. Spark writes a file `offsets/<micro-batch>` before it runs
the micro-batch. The file has a line with a version, a line with the time and some settings of the plan, and for each
source a line with its offsets in JSON.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from stablelog.errors import UnavailableError, UsageError
from stablelog.json_text import parse_json
from stablelog.spark.offsets import StreamOffsets
from stablelog.types import TopicPartition

OFFSETS_LOG_VERSION = "v1"
METADATA_LINES = 2  # the number of lines before those with the sources' offsets
NO_OFFSET = "-"  # the line that Spark writes for a source without offsets
DIGEST_LENGTH = 32


def plan_digest(checkpoint: str | None, batch_id: int) -> str:
    """Return a digest of a micro-batch's plan. The plan consists of the offsets of the query's sources, which Spark
    writes to the log of offsets in the checkpoint.

    Offsets of topics identify records. So if Spark loses a plan and makes it again, and no new records have arrived,
    the digest is the same. Offsets of other sources do not always identify the data. For example, a file source numbers
    its lists of files, and the offset is such a number. If Spark loses a list and makes it again, the list may have
    other files under the same number. If the query has such a source, the digest includes the time of planning, so that
    a plan that is made again has another digest.

    Returns:
        A digest; empty if the checkpoint cannot be read here, or has no entry for the micro-batch.
    """
    try:
        lines = _entry(checkpoint, batch_id)
    except (UsageError, UnavailableError):
        return ""
    if len(lines) <= METADATA_LINES:
        return ""
    sources = [_topic_offsets(line) for line in lines[METADATA_LINES:] if line != NO_OFFSET]
    if all(source.next_offsets for source in sources):
        # Leave out the field `cut`, a commit sequence: commits in other topics change it, but not the records that the
        # micro-batch reads.
        return digest_of([replace(source, cut=None).to_json() for source in sources])
    return digest_of(lines[1:])


def digest_of(value: Any) -> str:
    """Return a digest of a value that JSON can contain: a hash in hexadecimal. Equal values give equal digests."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]


def progress(checkpoint: str | None, batch_id: int) -> dict[TopicPartition, int]:
    """Return the progress of a query: the offsets of its source at which a micro-batch ends, by partition. The sink
    commits them for a consumer group. They are read from the checkpoint of the query.

    Raises:
        UsageError: the query reads no topics, or the checkpoint is not in a local directory.
        UnavailableError: the log of offsets cannot be read.
    """
    lines = _entry(checkpoint, batch_id)
    if lines[:1] != [OFFSETS_LOG_VERSION]:
        raise UnavailableError(
            f"commitGroup: the file offsets/{batch_id} of the checkpoint begins with "
            f"{''.join(lines[:1])!r}, and not with v1, the only version that can be read"
        )
    found: dict[TopicPartition, int] = {}
    for line in lines[METADATA_LINES:]:
        for place, offset in _topic_offsets(line).next_offsets.items():
            # If two sources read one topic, use the smaller offset, up to which both have read.
            found[place] = min(offset, found.get(place, offset))
    if not found:
        raise UsageError(
            "commitGroup: the query reads no topic, so there are no offsets to commit: leave the option out"
        )
    return found


def _entry(checkpoint: str | None, batch_id: int) -> list[str]:
    """Return the lines of a micro-batch's entry in the checkpoint's log of offsets: the version, the time and the
    settings, and a line for each source.
    """
    path = local_checkpoint(checkpoint) / "offsets" / str(batch_id)
    try:
        return path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise UnavailableError(f"commitGroup: {path} cannot be read: {error}") from error


def _topic_offsets(line: str) -> StreamOffsets:
    """Return the offsets in a source's line if the source reads topics, as stablelog and Spark's Kafka connector do;
    empty offsets for other sources.
    """
    try:
        return StreamOffsets.from_json(parse_json(line))
    except (ValueError, TypeError, AttributeError, LookupError):
        return StreamOffsets({})


def local_checkpoint(checkpoint: str | None) -> Path:
    """Return the directory of a checkpoint, which must be on a local file system.

    Raises:
        UsageError: there is no checkpoint, or it is not in a local directory.
    """
    if not checkpoint:
        raise UsageError("commitGroup requires a checkpoint: give the option checkpointLocation")
    scheme, colon, rest = checkpoint.partition(":")
    if not colon or "/" in scheme:
        return Path(checkpoint)
    if scheme != "file":
        raise UsageError(
            "commitGroup reads the source's progress from the checkpoint, which must be in a local "
            f"directory: {checkpoint}"
        )
    return Path(rest.removeprefix("//"))  # Like Hadoop, do not decode %-escapes: the path is not URL-quoted.
