"""The example of docs/reference/formats.md: what two starts of a broker write to a store, and events of the first segment.

python -m tests.broker.tiering.example      prints it as the document has it
"""

import itertools
import textwrap
import uuid
from functools import partial

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.tier.events import Events, partition_deleted
from stablelog.tier.manifest_parts import divide_into_parts
from stablelog.tier.records import KINDS, encode_record
from tests.broker.tiering.world import World
from tests.log.timeline import NOW_MS
from tests.tier.tiered_log import PARTITION

HEX_WIDTH = 112  # the number of digits in a line


class Example(World):
    """The partition `t-0` in its leader epoch 3. Its log begins at offset 5."""

    def __init__(self):
        super().__init__(words=())

    def open(self, **arguments):
        return super().open(leader_epoch=3, log_start_offset=5, **arguments)

    def copy(self):
        """Copy what was written as one segment. The broker then stops."""
        self.partition.roll(NOW_MS)
        self.sync()
        self.copy_all()
        self.copier.close()


def example():
    """Return the objects in the store, by key, and the values of events, by their kind.

    The first segment has the batch and the marker of the section "Record batch". The next start of the broker takes over,
    and copies a segment of one record. Parts have one segment.
    """
    numbers = itertools.count(1)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("uuid.uuid4", lambda: uuid.UUID(int=next(numbers)))
        patches.setattr("secrets.token_bytes", lambda size: bytes([0xA0 + next(numbers)]) * size)
        patches.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", 1)
        patches.setattr(
            "stablelog.broker.tiering.partition_copier.divide_into_parts",
            partial(divide_into_parts, new_id=uuid.uuid4),
        )
        world = Example()
        records = [Record(0, NOW_MS, b"k", b"v"), Record(0, NOW_MS, None, b"w")]
        transaction = {"producer_id": 5, "producer_epoch": 2, "base_sequence": 0, "transactional": True}
        world.partition.append(encode_batch(records, **transaction), now_ms=NOW_MS)
        world.end(5, commit=False, epoch=2, coordinator_epoch=9)
        world.copy()
        world.write("-")
        world.start()
        world.copy()
        manifest = world.published()
    events = [
        *itertools.islice(Events().missing_events(PARTITION, manifest, NOW_MS, 1), 2),
        partition_deleted(PARTITION, NOW_MS, 1),
    ]
    return world.store_objects.objects, {KINDS.index(type(event)): encode_record(event) for event in events}


def in_lines(content):
    """The lines of the document that have these bytes."""
    return textwrap.indent("\n".join(textwrap.wrap(content.hex(), HEX_WIDTH)), "    ")


def main():
    objects, events = example()
    for name, content in [*sorted(objects.items()), *events.items()]:
        print(f"{name}:\n{in_lines(content)}")


if __name__ == "__main__":
    main()
