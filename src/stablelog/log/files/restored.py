"""The file `restored` of a partition: the offsets whose records a restore from the object store could not bring back.

The lost broker may have assigned these offsets to records that are lost now. The restored log has batches without
records there, and never uses these offsets again. A reader whose position lies among them gets OFFSET_OUT_OF_RANGE,
because records after its position are lost.

Format: docs/reference/formats.md, "restored".
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stablelog.crc32c import crc32c
from stablelog.env.disk import Disk, read_if_there
from stablelog.errors import DamageError, adding_path, in_words, refuse_unknown_version
from stablelog.json_text import parse_json
from stablelog.log.files.names import RESTORED_FILE

VERSION: Final = 1
NUMBERS: Final = ("producer_ids_end", "torn_sequence", "next_sequence", "leader_epoch")


@dataclass(frozen=True, slots=True)
class Restored:
    """The offsets that restores have skipped in one partition, because their records were lost, and the numbers that
    they have skipped for the whole cluster, such as producer ids.

    Attributes:
        ranges: for each restore, the first lost offset, and the offset of the first record that was written after the
            restore. If no record was copied to the store between two restores, the second range begins where the first
            one ends.
        producer_ids_end: lost brokers may have assigned the producer ids below this number.
        torn_sequence: the greatest commit sequence (the number of a commit, counted over all topics of its transaction
            group) of a commit that may be incomplete, because some of its records are lost; -1 if there is none.
        next_sequence: the commit sequence of the first commit after the last restore.
        leader_epoch: the leader epoch of the last restore.
    """

    ranges: tuple[tuple[int, int], ...]
    producer_ids_end: int
    torn_sequence: int
    next_sequence: int
    leader_epoch: int

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The gaps that restores have left in the offsets: the lost ranges, each as (first lost offset, first offset
        after the range). Ranges without a record between them are joined.
        """
        joined: list[tuple[int, int]] = []
        for start, end in self.ranges:
            if joined and joined[-1][1] == start:
                start = joined.pop()[0]
            joined.append((start, end))
        return joined

    def lost_range(self, offset: int) -> tuple[int, int] | None:
        """Return the gap (a lost range of offsets) in which the position of a reader lies, as (first lost offset, first
        offset after the gap); None if it lies in no gap. A reader in a gap has read records that are lost now, or would
        miss some.

        A reader whose position is exactly at the beginning or the end of a range of `ranges` lies in no gap. It is not
        affected, because it has read every record before this position and none after it.
        """
        if not any(start < offset < end for start, end in self.ranges):
            return None
        return next(one for one in self.gaps if one[0] < offset < one[1])

    def encode(self) -> bytes:
        """Encode the content of the file `restored`: JSON, followed by its CRC."""
        text = json.dumps({"version": VERSION, **asdict(self)}).encode()
        return text + b"\n%08x\n" % crc32c(text)


def restored_from_fields(fields: Mapping[str, Any]) -> Restored:
    """Make the object from the fields of the file's JSON. Raises KeyError if a field is missing, and TypeError or
    ValueError if its value is not valid.
    """
    ranges = tuple((int(start), int(end)) for start, end in fields["ranges"])
    return Restored(ranges, *(int(fields[name]) for name in NUMBERS))


def read_restored(disk: Disk, directory: Path) -> Restored | None:
    """Read the file `restored` of a partition; None if the partition was not restored.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is damaged. The message names its path.
    """
    path = directory / RESTORED_FILE
    content = read_if_there(disk, path)
    return None if content is None else decode_restored(content, path)


def decode_restored(content: bytes, path: Path) -> Restored:
    """Decode the content of a file `restored`, which records the offsets whose records a restore could not bring back.
    Raises UnknownFormatError if a later release has written the file, and DamageError if it is damaged.
    """
    text, _, crc = content.removesuffix(b"\n").rpartition(b"\n")
    try:
        if crc != b"%08x" % crc32c(text):
            raise ValueError("the CRC in the file does not match its content")
        fields = parse_json(text)
        with adding_path(path):
            refuse_unknown_version(
                "the offsets that a restore did not find, in a file", fields.pop("version"), VERSION
            )
        return restored_from_fields(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(f"{path} is damaged: {in_words(error)}. Restore the file") from error
