"""The file `restored` of a partition: the offsets whose records a restore from the object store did not find.

The lost broker may have given these offsets to records, which are gone. The restored log has batches without records at
these offsets, and gives none of them to a record again. A reader in the middle of them is told that its offset is
out of range, because records after this offset are gone.

Format: docs/formats.md, "restored".
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from stablelog.env.disk import Disk, read_if_there
from stablelog.errors import DamageError, adding_path, in_words, refuse_unknown_version
from stablelog.json_text import parse_json
from stablelog.log.files.names import RESTORED_FILE

VERSION: Final = 1
NUMBERS: Final = ("producer_ids_end", "torn_sequence", "next_sequence", "leader_epoch")


@dataclass(frozen=True, slots=True)
class Restored:
    """What restores did not find in the store, and the numbers that they left out.

    Attributes:
        ranges: for each restore, the first offset that was not found and the offset of the first record after the
            restore, in the order of the offsets. If no record was copied between two restores, the range of the second
            one begins where that of the first one ends.
        producer_ids_end: lost brokers may have handed out the producer ids below this one.
        torn_sequence: the greatest commit sequence of a commit that may be incomplete; -1 if there is none.
        next_sequence: the first commit sequence after the last restore, in the transaction group of the topic.
        leader_epoch: the leader epoch of the last restore.
    """

    ranges: tuple[tuple[int, int], ...]
    producer_ids_end: int
    torn_sequence: int
    next_sequence: int
    leader_epoch: int

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The ranges, with those joined that follow each other because no record was copied between two restores."""
        joined: list[tuple[int, int]] = []
        for start, end in self.ranges:
            if joined and joined[-1][1] == start:
                start = joined.pop()[0]
            joined.append((start, end))
        return joined

    def lost_range(self, offset: int) -> tuple[int, int] | None:
        """Return the gap with the lost offsets of a reader at this offset, which has read records that are gone, or would
        miss such records; None if there is none. A reader at the end of a range has read no record of it.
        """
        if not any(start < offset < end for start, end in self.ranges):
            return None
        return next(one for one in self.gaps if one[0] < offset < one[1])

    def fields(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return asdict(self)

    def encode(self) -> bytes:
        """Encode the content of the file."""
        text = json.dumps({"version": VERSION, **self.fields()}).encode()
        return text + b"\n%08x\n" % crc32c(text)


def restored_of(fields: Mapping[str, Any]) -> Restored:
    """Return what the fields say. Raises TypeError, ValueError or KeyError if they say something else."""
    ranges = tuple((int(start), int(end)) for start, end in fields["ranges"])
    return Restored(ranges, *(int(fields[name]) for name in NUMBERS))


def read_restored(disk: Disk, directory: Path) -> Restored | None:
    """Read the file of a partition; None if the partition was not restored.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is damaged. The message names it.
    """
    path = directory / RESTORED_FILE
    content = read_if_there(disk, path)
    return None if content is None else decode_restored(content, path)


def decode_restored(content: bytes, path: Path) -> Restored:
    """Decode the content of the file. Raises as `read_restored`."""
    text, _, crc = content.removesuffix(b"\n").rpartition(b"\n")
    try:
        if crc != b"%08x" % crc32c(text):
            raise ValueError("its CRC does not match its content")
        fields = parse_json(text)
        with adding_path(path):
            refuse_unknown_version(
                "the offsets that a restore did not find, in a file", fields.pop("version"), VERSION
            )
        return restored_of(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(f"{path} is damaged: {in_words(error)}. Restore the file") from error
