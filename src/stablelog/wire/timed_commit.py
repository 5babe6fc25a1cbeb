"""OffsetCommit requests of versions 2 to 4, which contain a retention time of the offsets."""

from dataclasses import dataclass

from kio.schema.offset_commit.v9.request import OffsetCommitRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOffsetCommitRequest(OffsetCommitRequest):  # type: ignore[misc]  # mypy does not follow kio
    """An OffsetCommit request of versions 2 to 4.

    Unlike later versions, these contain the retention time of the offsets.

    Attributes:
        retention_ms: the time after the commit at which the offsets expire; -1 for the broker's setting.
    """

    retention_ms: int
