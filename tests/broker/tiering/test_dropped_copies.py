"""Copies without aborted data: a crash or an error at any step loses nothing, and a start accepts both forms of a segment."""

import itertools

import pytest

from stablelog.batch.header import headers_in
from stablelog.broker.settings.config import BrokerConfig, check_topic_configs
from stablelog.errors import UsageError
from stablelog.log.partition import LogConfig
from stablelog.testing.sim_faults import SimulatedCrash
from stablelog.testing.sim_objects import HOSTILE, SimObjects, StoreFaults
from stablelog.tier.index_object import IndexKind, indexes_of
from stablelog.tier.names import INDEXES, LOG
from tests.broker.tiering.world import World, chance_of, lines, stop_before
from tests.log.compaction.test_aborted_data import cleaned, committed
from tests.scale import FACTOR, SEED, seeds
from tests.tier.test_dropped_aborts import consumed, of_java
from tests.tier.tiered_log import PARTITION

WORDS = ("P1 P1 P1 P2 P1a", "P1 - P1c", "P2 P2a P2 P2c", "P3 P3 P3a P3 P3c", "P4 P4 P4 P4a")


class Dropping(World):
    """A partition whose copies lack aborted data."""

    def __init__(self, objects=None, words=WORDS, **config):
        super().__init__(objects, words, drops_aborted_copies=True, **config)

    def reconfigure(self, **changes):
        values = {name: getattr(self.config, name) for name in self.config.__slots__}
        self.config = LogConfig(**{**values, **changes})
        self.partition.config = self.config

    def log_of(self, row):
        return self.store_objects.objects[PARTITION.segment_key(row.base_offset, row.segment_id, LOG)]

    def check(self):
        """Check the objects of each row, and that read-committed readers see all records."""
        manifest = self.published()
        for row in () if manifest is None else manifest.segments:
            content = self.log_of(row)
            headers = [header for _, header in headers_in(content)]
            key = PARTITION.segment_key(row.base_offset, row.segment_id, INDEXES)
            indexes = indexes_of(self.store_objects.objects[key], key)
            assert (row.size, row.summary.log_size) == (len(content), len(content))
            assert (row.base_offset, row.end_offset) == (headers[0].base_offset, headers[-1].next_offset) or (
                row.base_offset <= headers[0].base_offset
            )
            assert headers[-1].next_offset == row.end_offset
            assert row.is_txn_index_empty == (not indexes[IndexKind.TRANSACTIONS])
            assert row.summary.record_count == sum(
                header.record_count for header in headers if not header.is_control
            )
        self.check_own()

    def check_own(self):
        partition = self.plain.partition
        wanted = consumed(partition.read, partition, 0, 1 << 20, of_java)
        for start in range(0, partition.last_stable_offset, 3):
            seen = consumed(self.read, self.partition, start, 1, of_java)
            assert seen == [offset for offset in wanted if offset >= start]


def sizes(world):
    plain = world.plain.partition.segments()
    return [(row.size, one.size) for row, one in zip(world.published().segments, plain, strict=False)]


def test_copies_are_smaller_and_have_the_offsets_of_the_segments():
    world = Dropping()
    world.copy_all()
    world.check()
    rows, plain = world.published().segments, world.plain.partition.segments()
    assert [(one.base_offset, one.end_offset) for one in rows] == [
        (one.base_offset, one.end_offset) for one in plain[:5]
    ]
    assert [size < before for size, before in sizes(world)] == [True, False, True, True, True]
    assert [one.is_txn_index_empty for one in rows] == [False, True, False, True, False]
    assert world.copier.uploads.size == sum(one.size for one in rows)
    # The local segments are as they were, so that local readers miss nothing.
    assert [one.size for one in world.partition.segments()] == [one.size for one in plain]
    world.drop_local()
    assert world.remote.end_offset == world.partition.start_offset
    world.check()


def test_an_index_is_requested_only_where_an_entry_stays():
    world = Dropping(words=("P1 P1 P1a P1 P1c",) * 5 + ("P1 P1 P1a",))
    world.copy_all()
    world.drop_local()
    world.check_own()
    wanted = {one.key for one in world.loaded.requests if one.key.endswith(INDEXES) and one.start == 0}
    assert len({key.rpartition("/")[2][:20] for key in wanted}) <= 6
    world.loaded.requests.clear()
    world.loaded.known.clear()
    consumed(world.read, world.partition, 0, 1 << 20, of_java)
    assert world.loaded.count(INDEXES) == 1


def test_the_setting_may_change_between_copies():
    world = Dropping(words=WORDS[3:])
    world.copy_all()
    world.reconfigure(drops_aborted_copies=False)
    world.write_segments(["P2 P2 P2", "P2a P1 P1 P1a P1 P1c"])
    world.copy_all()
    world.reconfigure(drops_aborted_copies=True)
    world.write_segments(["P2 P2 P2a P2 P2c"])
    world.copy_all()
    world.drop_local()
    world.check()
    assert [size < before for size, before in sizes(world)] == [True, True, False, False, True]


def finish(world):
    world.copy_all()
    world.drop_local()
    world.check()
    assert world.remote.end_offset == world.partition.start_offset == world.partition.end_offset


@pytest.mark.extended
def test_the_broker_may_stop_before_each_request_to_the_store():
    for number in itertools.count():
        world = Dropping()
        seen = stop_before(world.store_objects, number)
        try:
            world.copy_all()
        except SimulatedCrash:
            world.drop_local()
        world.power_failure(chance_of(number))
        world.check()
        finish(world)
        if number not in seen:
            break
    assert number > 15


@pytest.mark.extended
def test_the_machine_may_stop_at_each_operation_of_the_disk():
    """Copies, the removal from local segments, and local retention."""
    step = 4 if FACTOR == 1 else 1
    for number in itertools.count(1 + SEED % step, step):
        world = Dropping(local_retention_ms=-1, local_retention_bytes=400)
        world.reconfigure(drops_aborted=True)
        world.disk.crash_at = world.disk.steps + number
        try:
            world.copy_all()
            cleaned(world)
            world.drop_local()
            world.partition.deletion.remove_deleted(world.now_ms + 10**9)
            break
        except SimulatedCrash:
            world.power_failure(chance_of(number), world.disk)
            world.reconfigure(drops_aborted=True)
            world.check()
            cleaned(world)
            world.copy_all()
            world.check()
    assert number > 60


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", seeds(10))
def test_a_hostile_store_loses_nothing(seed):
    objects = SimObjects(seed, HOSTILE)
    world = Dropping(objects)
    for _ in range(3):
        world.copy_all()
        world.drop_local()
        world.write_segments(["- P6 P6 P6a", "P6 P6c"])
    objects.faults = StoreFaults()
    world.check()
    world.restart()
    finish(world)


# -- the history of a log -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_copy_cleaned", [True, False])
@pytest.mark.parametrize("is_local_cleaned", [True, False])
def test_a_start_accepts_the_local_and_the_remote_form_of_a_segment(
    is_copy_cleaned, is_local_cleaned, caplog
):
    world = Dropping()
    world.reconfigure(drops_aborted_copies=is_copy_cleaned, drops_aborted=is_local_cleaned)
    world.copy_all()
    assert cleaned(world) == (4 if is_local_cleaned else None)
    world.restart()
    world.reconfigure(drops_aborted_copies=is_copy_cleaned, drops_aborted=is_local_cleaned)
    world.write_segments(["P5 P5 P5a -"])
    world.copy_all()
    assert lines(caplog) == []
    assert world.remote.end_offset == world.partition.end_offset
    world.check()
    if is_copy_cleaned and is_local_cleaned:
        cleaned(world)
        rows = {one.base_offset: one.size for one in world.published().segments}
        assert rows == {one.base_offset: one.size for one in world.partition.segments() if one.sealed}


@pytest.mark.parametrize("words", [("P1 P1 P1 P2 P1c", *WORDS[1:]), ("P1 - P1 P2 P1a", *WORDS[1:])])
def test_a_log_whose_committed_records_differ_is_another_one(words, caplog):
    first = Dropping()
    first.copy_all()
    second = World(first.store_objects, words=words)
    second.copy_all()
    [line] = lines(caplog)
    assert "the store and the data directory are not of the same log" in line


def test_local_segments_are_rewritten_only_after_their_copy():
    world = Dropping()
    world.reconfigure(drops_aborted=True)
    assert cleaned(world) is None
    world.copy_all()
    before = committed(world)
    assert cleaned(world) == 4
    assert committed(world) == before
    world.check()


def test_a_damaged_marker_ends_the_copy_and_is_named(caplog):
    world = Dropping()
    path = world.partition.segments()[0].path(".log")
    content = bytearray(world.disk.read_bytes(path))
    content[-1] ^= 1
    world.disk.write_atomic(path, bytes(content))
    world.copy_all()
    [line] = lines(caplog)
    assert "the CRC of the batch at offset 4" in line
    assert not world.remote.manifest.segments


# -- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stablelog.remote.drop.aborted", "stablelog.local.drop.aborted"])
def test_a_commit_ordered_topic_cannot_drop_aborted_data(name):
    check_topic_configs({name: "true"})
    check_topic_configs({name: "false", "stablelog.order": "commit"})
    with pytest.raises(UsageError, match=rf"{name}=true and stablelog.order=commit cannot be combined"):
        check_topic_configs({name: "true", "stablelog.order": "commit"})
    config = BrokerConfig({name: "true"})
    fields = ("drops_aborted_copies", "drops_aborted")
    assert sum(getattr(config.log_config({}), field) for field in fields) == 1
    assert not any(getattr(config.log_config({"stablelog.order": "commit"}), field) for field in fields)
