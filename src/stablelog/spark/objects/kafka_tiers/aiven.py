"""The layout of Aiven's plugin for object stores. Of the objects of a segment, the plugin writes the manifest last: a
JSON object that describes the other two.

If the plugin neither compresses nor encrypts, the object `.log` is Kafka's log file, byte for byte, and the manifest
says where the indexes are in the object `.indexes`. With compression, the object `.log` is another file; with
encryption, the indexes cannot be read either. Only a broker with the plugin can read such a segment. A read of the
store then leaves the segment to the brokers, or is refused if it has no brokers.

Source: ObjectKeyFactory, SegmentManifestV1, SegmentIndexesV1 and KafkaTypeSerdeModule of
Aiven-Open/tiered-storage-for-apache-kafka.
"""

from collections.abc import Collection
from typing import Any, Final

from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, in_words
from stablelog.json_text import parse_json
from stablelog.spark.objects.kafka_tiers.names import AivenPartition, Upload, aiven_topic_of
from stablelog.spark.objects.kafka_tiers.segment import KafkaSegment
from stablelog.tier.index_object import IndexKind
from stablelog.tier.names import INDEXES, LOG, RemotePartition, text_of_id
from stablelog.types import ObjectRange

MANIFEST: Final = "rsm-manifest"
VERSION: Final = "1"
NAMES: Final = {
    IndexKind.OFFSETS: "offset",
    IndexKind.TIMES: "timestamp",
    IndexKind.TRANSACTIONS: "transaction",  # null if the segment has no transaction index
    IndexKind.SNAPSHOT: "producerSnapshot",
    IndexKind.LEADER_EPOCHS: "leaderEpoch",
}


class Aiven:
    """The layout of Aiven's plugin."""

    required = frozenset({LOG, INDEXES, MANIFEST})

    def is_used(self, store: ObjectStore) -> bool:
        """Return whether the store has this layout: whether the directory of a topic contains directories of
        partitions.
        """
        # A directory of LocalTieredStorage may have such a name, but it has only files.
        return any(aiven_topic_of(name) is not None and _numbers(store, name) for name in store.directories())

    def topics(self, store: ObjectStore) -> set[str]:
        """Return the names of the topics that have a directory."""
        return {found[0] for name in store.directories() if (found := aiven_topic_of(name)) is not None}

    def partitions(self, store: ObjectStore, topics: Collection[str]) -> list[RemotePartition]:
        """Return the partitions of some topics that have a directory."""
        found: list[RemotePartition] = []
        for name in store.directories():
            topic = aiven_topic_of(name)
            if topic is not None and topic[0] in topics:
                found += [AivenPartition(*topic, number) for number in _numbers(store, name)]
        return found

    def segment(self, store: ObjectStore, upload: Upload) -> KafkaSegment:
        """Return the segment that an upload (an attempt to copy a segment) has stored. This method downloads the
        plugin's manifest of the segment, which describes its objects.
        """
        key = upload.files[MANIFEST].key
        content = store.get(key)
        try:
            manifest = parse_json(content)
            if manifest["version"] != VERSION:
                raise ValueError(
                    f"the version of the manifest is {manifest['version']!r}, and only {VERSION!r} is known"
                )
            _check_names(upload, manifest["remoteLogSegmentMetadata"])
            return _segment(upload, manifest, _refusal(f"{store.url}/{key}", manifest))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamageError(
                f"{store.url}/{key} is no manifest of this segment by Aiven's plugin: {in_words(error)}"
            ) from error


def _numbers(store: ObjectStore, directory: str) -> list[int]:
    return [int(one) for one in store.directories(directory) if one.isascii() and one.isdecimal()]


def _refusal(place: str, manifest: dict[str, Any]) -> str:
    """Return the reason why Spark cannot read a segment: the plugin has compressed or encrypted it. The result is empty
    if Spark can read the segment. `place` is the URL of the manifest, with which the text begins.
    """
    changes = {"compression": manifest["compression"], "encryption": _is_encrypted(manifest)}
    if not any(changes.values()):
        return ""
    setting = " and ".join(name for name, is_used in changes.items() if is_used)
    return f"{place}: Aiven's plugin has written this segment with {setting}, so its log file is not Kafka's"


def _is_encrypted(manifest: dict[str, Any]) -> bool:
    return manifest.get("encryption") is not None


def _check_names(upload: Upload, metadata: dict[str, Any]) -> None:
    """Check that a manifest of Aiven's plugin, the JSON object that describes a segment, names in its content
    (`metadata`) the same segment as in its key (`upload`). Raises ValueError if it names another one.
    """
    partition, named = upload.partition, metadata["remoteLogSegmentId"]["topicIdPartition"]
    found = (
        named["topicId"],
        named["topicPartition"]["topic"],
        named["topicPartition"]["partition"],
        metadata["remoteLogSegmentId"]["id"],
        metadata["startOffset"],
    )
    wanted = (
        text_of_id(partition.topic_id),
        partition.topic,
        partition.partition,
        text_of_id(upload.segment_id),
        upload.base_offset,
    )
    if found != wanted:
        raise ValueError(f"the content of the manifest is of another segment than its key says: {found}")


def _segment(upload: Upload, manifest: dict[str, Any], refusal: str) -> KafkaSegment:
    log = upload.files[LOG]
    size = _number(manifest["chunkIndex"]["originalFileSize"])
    if size != log.size and not refusal:
        raise ValueError(
            f"the manifest gives {size} bytes for {log.key}, which has {log.size} bytes: restore the object"
        )
    places = {} if _is_encrypted(manifest) else _index_places(upload, manifest)
    metadata = manifest["remoteLogSegmentMetadata"]
    if _number(metadata["endOffset"]) < upload.base_offset:
        raise ValueError(f"the end offset in the manifest is not valid: {metadata['endOffset']}")
    return KafkaSegment(
        upload.segment_id,
        upload.base_offset,
        metadata["endOffset"] + 1,
        log.size,
        metadata["maxTimestampMs"],
        (),
        event_ms=_number(metadata["eventTimestampMs"]),
        is_txn_index_empty=IndexKind.TRANSACTIONS not in places or not places[IndexKind.TRANSACTIONS].size,
        log_object=log.key,
        indexes=tuple(places.items()),
        refusal=refusal,
    )


def _index_places(upload: Upload, manifest: dict[str, Any]) -> dict[IndexKind, ObjectRange]:
    indexes = upload.files[INDEXES]
    rows = {kind: manifest["segmentIndexes"][name] for kind, name in NAMES.items()}
    if rows[IndexKind.TRANSACTIONS] is None:
        del rows[IndexKind.TRANSACTIONS]
    places = {
        kind: ObjectRange(indexes.key, _number(row["position"]), _number(row["size"]))
        for kind, row in rows.items()
    }
    end = max(place.start + place.size for place in places.values())
    if end > indexes.size:
        raise ValueError(
            f"according to the manifest, the indexes end at byte {end} of {indexes.key}, which has only "
            f"{indexes.size} bytes: restore the object"
        )
    return places


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"the manifest has {value!r} where a number is expected")
    return value
