"""A decoder with a builder of its own."""

from stablelog.spark.columns.builder import BYTES_MAX, ROWS_MAX, ColumnBuilder
from stablelog.spark.columns.decoder import Decoder


class OwnDecoder(Decoder):
    """Decodes into columns that no other decoder fills."""

    def __init__(self, topic, partition, columns, *, rows_max=ROWS_MAX, bytes_max=BYTES_MAX, **options):
        builder = ColumnBuilder(columns, rows_max, bytes_max)
        super().__init__(topic, partition, builder, **options)
        self.schema, self.flush = builder.schema, builder.take_batches
