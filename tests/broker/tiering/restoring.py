"""A data directory that is made from the objects of a store alone, as a restore makes it.

Each partition gets the segments that its last manifest names. A broker that starts on the directory recovers them, as after
a crash that has lost all later records.
"""

import random

from stablelog.broker.tiering.remote_storage import RemoteStorage
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.log.files.epochs import EPOCH_FILE
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.partition_metadata import METADATA_FILE
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_objects import SimObjects, StoreFaults
from stablelog.tier.chain import last_manifest
from stablelog.tier.index_object import IndexKind, indexes_of
from stablelog.tier.names import INDEXES, LOG, partition_of
from stablelog.tier.records import SegmentState
from tests.broker.desk import DATA, opened

NEW_DIRECTORIES = {}  # Data directories without records, by their topics.


def objects_in(directory):
    """The objects of a store in a local directory, by key."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def manifests(objects):
    """The last manifest of each partition, by the partition."""
    store = ObjectStore(SimObjects(faults=StoreFaults(latency_s=0), objects=dict(objects)))
    storage = RemoteStorage(store, "any")
    found = {}
    for partition in {partition_of("/".join(key.split("/")[:3])) for key in objects} - {None}:
        payload = storage.prefix.run_steps(last_manifest(partition))
        if payload is not None:
            found[partition] = storage.prefix.read_manifest(partition, payload)[0]
    return found


def live_rows(manifest):
    """The segments of a manifest that are not being deleted."""
    return [row for row in manifest.segments if row.state is SegmentState.COPY_FINISHED]


async def restored(objects, *topics):
    """A disk with what the store has of the logs of the default coordinators, and of these topics of one partition."""
    if topics not in NEW_DIRECTORIES:
        async with opened(SimDisk(), topics=topics, partitions=1) as desk:
            NEW_DIRECTORIES[topics] = desk.broker.disk
        NEW_DIRECTORIES[topics].remove(DATA / CLEAN_SHUTDOWN_FILE)
    disk = NEW_DIRECTORIES[topics].crash(random.Random(0))  # a copy, because all of it is durable
    for partition, manifest in manifests(objects).items():
        directory = DATA / f"{partition.topic}-{partition.partition}"
        if not disk.is_dir(directory):
            continue
        for name in disk.list_dir(directory):
            if name != METADATA_FILE:
                disk.remove(directory / name)
        for row in live_rows(manifest):
            log = objects[partition.segment_key(row.base_offset, row.segment_id, LOG)]
            disk.write_atomic(directory / f"{row.base_offset:020}.log", log)
            key = partition.segment_key(row.base_offset, row.segment_id, INDEXES)
            epochs = indexes_of(objects[key], key)[IndexKind.LEADER_EPOCHS]
            disk.write_atomic(directory / EPOCH_FILE, bytes(epochs))
        if not live_rows(manifest):
            disk.write_atomic(directory / f"{manifest.end_offset:020}.log", b"")
        disk.write_atomic(directory / LOG_START_FILE, encode_log_start(manifest.log_start))
    return disk
