"""A member of a consumer group, over a coordinator that answers from a script."""

import uuid
from datetime import timedelta
from types import SimpleNamespace

from kio.schema.errors import ErrorCode

from stablelog.client.blocking.connection import run
from stablelog.client.core.membership import GroupMember
from stablelog.errors import UnavailableError
from tests.waiting import until

TOPIC_ID = uuid.UUID(int=1)


class Coordinator:
    """A cluster with one broker, which gives these answers; None for a lost one."""

    address = "coordinator"

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    def retrying(self, _what, attempt, deadline_s=None):
        """Try until the answer is there; with a deadline, once."""
        while True:
            try:
                return (yield from attempt())
            except UnavailableError:
                if deadline_s is not None:
                    raise

    def metadata(self):
        return {"t": SimpleNamespace(topic_id=TOPIC_ID)}
        yield

    def coordinator(self, *_):
        return self
        yield

    def supports_api(self, *_):
        return True

    def request_steps(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if answer is None:
            raise UnavailableError("lost")
        return answer
        yield


def beat(epoch, assigned=None, interval_s=0):
    """The answer to a heartbeat, with an assignment of partitions of the topic t or without one."""
    topics = [SimpleNamespace(topic_id=TOPIC_ID, partitions=assigned)] if assigned else []
    return SimpleNamespace(
        error_code=ErrorCode.none,
        error_message=None,
        heartbeat_interval=timedelta(seconds=interval_s),
        member_epoch=epoch,
        assignment=None if assigned is None else SimpleNamespace(topic_partitions=topics),
    )


def test_a_member_says_what_it_owns_after_a_partition_was_taken_back_before_the_member_had_it():
    """Until then the coordinator gives the partition to nobody: it was assigned, and may be read."""
    no_offsets = SimpleNamespace(groups=[SimpleNamespace(error_code=ErrorCode.none, topics=())])
    coordinator = Coordinator(
        beat(1, [0]),
        no_offsets,
        beat(1),
        beat(2, [0, 1]),
        None,  # the offset of t-1 is not known in time
        beat(2, [0], interval_s=3600),
        beat(3),
    )
    member = GroupMember(coordinator, "g", ["t"])
    until(
        lambda: run(member.follow_assignment()) and not coordinator.answers,
        "the member does not say what it owns",
    )
    assert member.owned == {("t", 0)}
    *_, taken_back, told = coordinator.requests
    assert taken_back.topic_partitions is None
    assert [topic.partitions for topic in told.topic_partitions] == [(0,)]


def test_a_member_asks_for_its_assignment_again_after_a_lost_answer():
    """A coordinator sends an assignment once, or again in the answer to a request with all fields."""
    fine = beat(1)
    coordinator = Coordinator(fine, fine, None, fine, fine)
    member = GroupMember(coordinator, "g", ["t"])
    for _ in range(4):
        run(member.follow_assignment())
    topics = [request.subscribed_topic_names for request in coordinator.requests]
    assert topics == [("t",), None, None, ("t",), None]
    assert coordinator.requests[3].topic_partitions == ()


def test_a_member_that_was_replaced_before_it_asks_for_offsets_joins_again():
    fine = beat(3, interval_s=3600)
    offsets = SimpleNamespace(groups=[SimpleNamespace(error_code=ErrorCode.unknown_member_id, topics=())])
    gone = SimpleNamespace(error_code=ErrorCode.unknown_member_id, heartbeat_interval=timedelta(0))
    coordinator = Coordinator(fine, offsets, gone, fine)
    member = GroupMember(coordinator, "g", ["t"])
    run(member.follow_assignment())
    assert run(member.committed_offsets_once([("t", 0)])) is None
    run(member.follow_assignment())
    run(member.follow_assignment())
    assert [request.member_epoch for request in coordinator.requests[2:]] == [3, 0]
