"""The settings of `stablelog produce`: batch size, compression and times."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from stablelog.batch.header import Codec
from stablelog.cli.record_writer import BATCH_SIZE_MAX, DELIVERY_TIMEOUT_S, LINGER_S

TRANSACTION_TIMEOUT_S = 60.0


class Compression(StrEnum):
    """The compression codecs of Kafka's record batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class WriteSettings(NamedTuple):
    """How `stablelog produce` writes records.

    Attributes:
        codec: the compression of the batches.
        batch_size: the maximum bytes of a batch with more than one record.
        linger_s: how many seconds a record waits for further records of the input before it is sent.
        delivery_timeout_s: for how many seconds records are sent again if the broker accepts none.
        transaction_timeout_s: the time after which a transaction is aborted.
    """

    codec: Codec
    batch_size: int
    linger_s: float
    delivery_timeout_s: float
    transaction_timeout_s: float

    @classmethod
    def from_options(
        cls, given: Mapping[str, Any], compression: Compression | None, transaction_timeout_s: float | None
    ) -> "WriteSettings":
        """Return the settings of a command. Each value comes from an option of the command; without the option from a
        setting by Kafka's name (`given`, the values by name); and otherwise it is the default.
        """
        if transaction_timeout_s is None:
            transaction_timeout_s = given.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_S * 1000) / 1000
        return cls(
            given.get("compression.type", Codec.NONE) if compression is None else Codec[compression.name],
            given.get("batch.size", BATCH_SIZE_MAX),
            given.get("linger.ms", LINGER_S * 1000) / 1000,
            given.get("delivery.timeout.ms", DELIVERY_TIMEOUT_S * 1000) / 1000,
            transaction_timeout_s,
        )
