"""The log of brokers together with their object store: what is only in the store is read there, and the rest from files
or from the brokers.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stablelog.client.cluster import EARLIEST_LOCAL
from stablelog.client.responses import Missing
from stablelog.errors import Corrupt, Refused, Unavailable
from stablelog.spark.objects.stored_topics import stored_topics
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import Span
from stablelog.spark.source.directory_log import SharedLog
from stablelog.spark.source.resolve import Range, name
from stablelog.tier.names import RemotePartition
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)


class TieredLog(SharedLog):
    """The log of brokers with tiered storage.

    The brokers tell the ends of the partitions and the offsets that they have on their local disks. A range before them
    is read from the store. A micro-batch at the end of the log therefore sends no request to the store.
    """

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(replace(options, path=None, scan="auto"))
        self._stored = stored_topics(options, self._first_needed)
        self._needed: dict[TopicPartition, int] = {}

    def spans(self, ranges: Sequence[Range], topic_ids: Mapping[str, str]) -> Iterable[Span]:
        """Return the spans of each range: the part that is only in the store, and the rest."""
        local = self._local_starts(ranges)
        self._needed |= {wanted.place: wanted.start for wanted in ranges}
        topics = {wanted.place[0] for wanted in ranges if wanted.start < local[wanted.place]}
        stored = self._stored.of_topics(sorted(topics)) if topics else {}
        for wanted in ranges:
            rest, topic_id = wanted, topic_ids.get(wanted.place[0], "")
            found = stored.get(wanted.place)
            if found is not None and found.partition.topic_id.hex == topic_id:
                end = min(wanted.end, local[wanted.place], found.end_offset)
                try:
                    if max(wanted.start, found.start_offset) == wanted.start < end:
                        yield found.span(wanted.start, end, topic_id)
                        rest = wanted._replace(start=end)
                except (Corrupt, Unavailable) as error:
                    log.warning("%s is read through its broker: %s", name(wanted.place), error)
            if rest.start < rest.end:
                yield from super().spans([rest], topic_ids)

    def _first_needed(self, partition: RemotePartition) -> int:
        return self._needed.get((partition.topic, partition.partition), 0)

    def _local_starts(self, ranges: Sequence[Range]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that its broker has on its local disk; 0 if it does not say."""
        places = [wanted.place for wanted in ranges]
        try:
            found = self.cluster.list_offsets(dict.fromkeys(places, EARLIEST_LOCAL), "read_uncommitted")
        except Missing:
            raise
        except Refused:
            return dict.fromkeys(places, 0)  # A broker without tiered storage.
        return {place: found[place].offset for place in places}

    def end_read(self) -> None:
        """Delete the pins of the read."""
        self._stored.remove_pins()
