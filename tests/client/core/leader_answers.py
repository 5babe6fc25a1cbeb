"""Answers of scripted leaders to the requests for offsets and leader epochs of partitions."""

from kio.schema.errors import ErrorCode

from tests.client.core.scripted import NONE, part, reply


def _by_topic(request, topic_part, name_field, answer):
    """The response whose topics have, for each requested partition, what `answer` returns; it is left out for None."""
    return reply(
        request,
        topics=tuple(
            part(
                request,
                topic_part,
                **{name_field: getattr(topic, name_field)},
                partitions=tuple(found for one in topic.partitions if (found := answer(one)) is not None),
            )
            for topic in request.topics
        ),
    )


def listed_offsets(find, timestamp=1000, leader_epoch=2):
    """An answer to ListOffsets. `find` gets the number of a partition and the requested time, and returns an offset, an
    error code, or None to leave the partition out.
    """

    def answer(request):
        def partition(one):
            found = find(one.partition_index, one.timestamp)
            if found is None:
                return None
            is_refused = isinstance(found, ErrorCode)
            return part(
                request,
                "ListOffsetsPartitionResponse",
                partition_index=one.partition_index,
                error_code=found if is_refused else NONE,
                offset=-1 if is_refused else found,
                timestamp=timestamp,
                leader_epoch=leader_epoch,
            )

        return _by_topic(request, "ListOffsetsTopicResponse", "name", partition)

    return answer


def epoch_ends_at(find):
    """An answer to OffsetForLeaderEpoch. `find` gets the number of a partition and the requested leader epoch, and
    returns the leader epoch and its end offset.
    """

    def answer(request):
        def partition(one):
            leader_epoch, end_offset = find(one.partition, one.leader_epoch)
            return part(
                request,
                "EpochEndOffset",
                error_code=NONE,
                partition=one.partition,
                leader_epoch=leader_epoch,
                end_offset=end_offset,
            )

        return _by_topic(request, "OffsetForLeaderTopicResult", "topic", partition)

    return answer
