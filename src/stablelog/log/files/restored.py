"""The file `restored` of a partition: the offsets whose records a restore from the object store did not find.

The lost broker may have given these offsets to records, which are gone. The restored log has one batch without records
at these offsets, and gives none of them to a record again. A reader in the middle of them is told that its offset is
out of range, because records after this offset are gone.

Format: docs/formats.md, "restored".
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from stablelog.env.disk import Disk, read_if_there
from stablelog.errors import Corrupt, in_words, naming, refuse_newer
from stablelog.log.files.names import RESTORED_FILE

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did not find in the store.

    Attributes:
        start: the first offset that was not found.
        end: the offset of the first record after the restore.
        producer_ids_end: the lost broker may have handed out the producer ids below this one.
        torn_sequence: the greatest commit sequence of a commit that may be incomplete; -1 if there is none.
    """

    start: int
    end: int
    producer_ids_end: int
    torn_sequence: int

    def has_lost(self, offset: int) -> bool:
        """Whether a reader at this offset has read records that are gone, or would miss such records."""
        return self.start < offset < self.end

    def encode(self) -> bytes:
        """Encode the content of the file."""
        text = json.dumps({"version": VERSION, **asdict(self)}).encode()
        return text + b"\n%08x\n" % crc32c(text)


def read_restored(disk: Disk, directory: Path) -> Restored | None:
    """Read the file of a partition; None if the partition was not restored.

    Raises:
        NewerFormat: a later release has written the file.
        Corrupt: the file is damaged. The message names it.
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
        fields = json.loads(text)
        with naming(path):
            refuse_newer("the offsets that a restore did not find, in a file", fields.pop("version"), VERSION)
        return Restored(**{name: int(number) for name, number in fields.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{path} is damaged: {in_words(error)}. Restore the file") from error
