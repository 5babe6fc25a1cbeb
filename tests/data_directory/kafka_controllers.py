"""The log of Apache Kafka's controllers, as these write it: for the records that a take-over reads."""

import struct
import uuid

from stablelog.batch.records import Record, encode_batch


def controllers_log(*batches, base_offset=0):
    """Batches of records, one offset after the other."""
    content = b""
    for batch in batches:
        records = [Record(0, 0, None, value, ()) for value in batch]
        content += encode_batch(records, base_offset=base_offset)
        base_offset += len(batch)
    return content


def compact(text):
    """A string with its length plus one before it; 0 for null."""
    return b"\0" if text is None else bytes([len(text) + 1]) + text.encode()


def topic_record(name, number=0):
    return bytes([1, 2, 0]) + compact(name) + uuid.UUID(int=number).bytes + b"\0"


def partition_record(number, index, nodes=(1,)):
    """With its replicas, and those in sync; the rest is not read."""
    replicas = bytes([len(nodes) + 1]) + struct.pack(f">{len(nodes)}i", *nodes)
    return bytes([1, 3, 1]) + struct.pack(">i", index) + uuid.UUID(int=number).bytes + replicas * 2


def removal_record(number):
    return bytes([1, 9, 0]) + uuid.UUID(int=number).bytes + b"\0"


def config_record(topic, setting, value, resource=2):
    return bytes([1, 4, 0, resource]) + compact(topic) + compact(setting) + compact(value) + b"\0"
