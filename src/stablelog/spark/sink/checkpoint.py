"""Reader of Spark's checkpoint: the offsets at which a micro-batch ends, and a digest of its plan.

It reads the checkpoint's log of offsets, `offsets/<micro-batch>`, which Spark writes before it runs the micro-batch: a
version, a line about the plan (its time, some settings), and for each source a line with its offsets in JSON. It never
writes.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from stablelog.errors import InvalidConfig, Unavailable
from stablelog.spark.offsets import StreamOffsets
from stablelog.types import TopicPartition

OFFSETS_LOG_VERSION = "v1"
METADATA_LINES = 2  # before the lines of the sources' offsets
NO_OFFSET = "-"  # the line of a source without offsets
DIGEST_LENGTH = 32


def plan_digest(checkpoint: str | None, batch_id: int) -> str:
    """Digest of a micro-batch's plan: its sources' offsets, from the checkpoint's log of offsets.

    Offsets of topics identify records. A plan that was lost and made again without new records is therefore the same.
    Offsets of other sources may not identify data (a file source counts its lists of files, and may lose one). With
    such a source the digest includes the time of planning, so a plan that was made again is never the same.

    Returns:
        A digest; empty if the checkpoint cannot be read here, or has no entry for the micro-batch.
    """
    try:
        lines = _entry(checkpoint, batch_id)
    except (InvalidConfig, Unavailable):
        return ""
    if len(lines) <= METADATA_LINES:
        return ""
    sources = [_topic_offsets(line) for line in lines[METADATA_LINES:] if line != NO_OFFSET]
    if all(source.next_offsets for source in sources):
        # The cut is left out: commits in other topics move it without a change in these topics.
        return digest_of([replace(source, cut=None).to_json() for source in sources])
    return digest_of(lines[1:])


def digest_of(value: Any) -> str:
    """Hexadecimal digest of a value; equal values give equal digests."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]


def progress(checkpoint: str | None, batch_id: int) -> dict[TopicPartition, int]:
    """The offsets at which a micro-batch ends in its sources' topics, from the checkpoint's log of offsets.

    Raises:
        InvalidConfig: it reads no topics, or the checkpoint is not in a local directory.
        Unavailable: the log of offsets cannot be read.
    """
    lines = _entry(checkpoint, batch_id)
    if lines[:1] != [OFFSETS_LOG_VERSION]:
        raise Unavailable(
            f"commitGroup: offsets/{batch_id} of the checkpoint is {lines[:1]}, not a log of offsets of version v1"
        )
    found: dict[TopicPartition, int] = {}
    for line in lines[METADATA_LINES:]:
        for place, offset in _topic_offsets(line).next_offsets.items():
            # If two sources read one topic, the smaller offset counts: both have read up to it.
            found[place] = min(offset, found.get(place, offset))
    if not found:
        raise InvalidConfig("commitGroup: the query reads no topic whose progress could be committed")
    return found


def _entry(checkpoint: str | None, batch_id: int) -> list[str]:
    """The lines of a micro-batch's entry in the checkpoint's log of offsets."""
    path = local_checkpoint(checkpoint) / "offsets" / str(batch_id)
    try:
        return path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise Unavailable(f"commitGroup: {path} cannot be read: {error}") from error


def _topic_offsets(line: str) -> StreamOffsets:
    """The offsets of a source of topics (stablelog's or Spark's Kafka connector's); empty for any other source."""
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
    return Path(rest.removeprefix("//"))  # As Hadoop does it: the path is not URL-quoted.
