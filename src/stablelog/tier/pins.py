"""Pins: objects by which a reader of the object store keeps segments from deletion.

A reader that needs no broker, such as a Spark query, creates a pin in each partition that it reads. While the pin is
valid, the broker deletes no object of a segment that overlaps the pinned offsets. The steps of a reader are:

1. Create the pin.
2. Read the last manifest, the list of the partition's segments. A segment that is not marked for deletion in this
   manifest stays in the store as long as the pin is valid: before the broker deletes the objects of a segment, it
   publishes a manifest that marks the segment, waits for the delay of deletions, and lists the pins.
3. Every RENEWAL_S seconds, create a new pin with the same offsets, and then delete the old one.
4. At the end, delete the pin. A reader that is killed cannot do that, so pins expire.

The broker does not compare clocks. It counts the VALID_S seconds of a pin from the moment when it has first listed the
pin, and deletes the pin after them. After a restart, the broker therefore counts VALID_S seconds again for each pin,
also for that of a reader that has died.

Format: docs/reference/formats.md, "Pins".
"""

import json
from typing import Final, NamedTuple

from stablelog.errors import DamageError, in_words, refuse_unknown_version
from stablelog.json_text import parse_json

VERSION: Final = 1
VALID_S: Final = 3600.0
RENEWAL_S: Final = 900.0


class Pin(NamedTuple):
    """The offsets that a reader of the object store protects from deletion, by an object with this content.

    Attributes:
        start_offset: the first offset that the reader may still read.
        end_offset: the offset after the last one that the reader may still read.
        reader: the reader in words, for a user who lists the pins.
    """

    start_offset: int
    end_offset: int
    reader: str

    def protects(self, base_offset: int, end_offset: int) -> bool:
        """Return whether the pin, by which a reader of the store protects offsets, keeps a segment with the offsets
        [base_offset, end_offset) from deletion: it does if the offsets overlap those of the pin.
        """
        return base_offset < self.end_offset and self.start_offset < end_offset


def encode_pin(pin: Pin) -> bytes:
    """Encode a pin, the object by which a reader of the store keeps segments from deletion: the offsets, and the reader
    in words.
    """
    return json.dumps(
        {"version": VERSION, "start": pin.start_offset, "end": pin.end_offset, "reader": pin.reader}
    ).encode()


def decode_pin(content: bytes) -> Pin:
    """Decode a pin, the object by which a reader of the store keeps segments from deletion.

    Raises:
        UnknownFormatError: a later release has written the pin.
        DamageError: the object is damaged.
    """
    try:
        fields = parse_json(content)
        version, start_offset, end_offset = (int(fields[name]) for name in ("version", "start", "end"))
        reader = str(fields["reader"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(
            "a pin (the object by which a reader protects segments from deletion) is damaged: "
            f"{in_words(error)}"
        ) from error
    refuse_unknown_version("a pin", version, VERSION)
    if version != VERSION or not 0 <= start_offset <= end_offset:
        raise DamageError(
            "a pin (the object by which a reader protects segments from deletion) is damaged: its "
            f"version {version} or its offsets {start_offset} to {end_offset} are not possible"
        )
    return Pin(start_offset, end_offset, reader)
