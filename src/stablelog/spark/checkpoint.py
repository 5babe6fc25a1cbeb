"""What does Spark's checkpoint say of a micro-batch: up to where it reads, and whether it is the one that it was?

Read is its log of offsets, `offsets/<micro-batch>`, which Spark writes before it runs the micro-batch: a version, a
line about the plan (its time, some settings), and a line for each source, its offsets in JSON. Never written to.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from stablelog.errors import InvalidConfig, Unavailable
from stablelog.spark.offsets import Place, StreamOffsets

OFFSETS_LOG_VERSION = "v1"
METADATA_LINES, NO_OFFSET = 2, "-"  # in front of the sources' offsets; of a source that has none yet
DIGEST_LENGTH = 32


def plan_digest(checkpoint: str | None, batch_id: int) -> str:
    """What a micro-batch is made of: its sources' offsets, as the checkpoint's log of offsets has them.

    Offsets of topics say which records are meant. So a plan that was lost, and made again with nothing new to read, is
    the same. Those of other sources need not (a file source counts its lists of files, and may lose one): with such a
    source the time of planning is a part of it, and no plan is the same as one that was made again.

    Returns:
        A short word; empty if the checkpoint cannot be read here, or has no such entry.
    """
    try:
        path = local_checkpoint(checkpoint) / "offsets" / str(batch_id)
        lines = path.read_text().splitlines()
    except (InvalidConfig, OSError, ValueError):
        return ""
    if len(lines) <= METADATA_LINES:
        return ""
    sources = [_topic_offsets(line) for line in lines[METADATA_LINES:] if line != NO_OFFSET]
    if all(source.next_offsets for source in sources):
        # Where a cut lies besides, is another matter: it moves on with commits that are nowhere in these topics.
        return digest_of([replace(source, cut=None).to_json() for source in sources])
    return digest_of(lines[1:])


def digest_of(value: Any) -> str:
    """A word that is the same for equal values, and for no others."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]


def progress(checkpoint: str | None, batch_id: int) -> dict[Place, int]:
    """Up to where a micro-batch reads the topics of its sources, from the checkpoint's log of offsets.

    Raises:
        InvalidConfig: it reads no topics, or the checkpoint is not where this can read it.
        Unavailable: the log of offsets cannot be read.
    """
    path = local_checkpoint(checkpoint) / "offsets" / str(batch_id)
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise Unavailable(f"commitGroup: {path} cannot be read: {error}") from error
    if not lines or lines[0] != OFFSETS_LOG_VERSION:
        raise Unavailable(f"commitGroup: {path} is {lines[:1]}, not a log of offsets of version v1")
    found: dict[Place, int] = {}
    for line in lines[METADATA_LINES:]:
        for place, offset in _topic_offsets(line).next_offsets.items():
            # Two sources may read one topic: what both have read is read.
            found[place] = min(offset, found.get(place, offset))
    if not found:
        raise InvalidConfig("commitGroup: the query reads no topic whose progress could be committed")
    return found


def _topic_offsets(line: str) -> StreamOffsets:
    """The offsets of a source, if it is one of topics: ours, or Spark's Kafka connector's; else none."""
    try:
        return StreamOffsets.from_json(json.loads(line))
    except (ValueError, TypeError, AttributeError, LookupError):
        return StreamOffsets({})


def local_checkpoint(checkpoint: str | None) -> Path:
    """Where a checkpoint lies.

    Raises:
        InvalidConfig: it is none, or not a local directory.
    """
    if not checkpoint:
        raise InvalidConfig("commitGroup needs a checkpoint: option checkpointLocation")
    scheme, colon, rest = checkpoint.partition(":")
    if not colon or "/" in scheme:
        return Path(checkpoint)
    if scheme != "file":
        raise InvalidConfig(
            f"commitGroup reads the source's progress from the checkpoint, which has to be a local directory for that; it is {checkpoint}"
        )
    return Path(rest.removeprefix("//"))  # as Hadoop reads it: nothing is quoted
