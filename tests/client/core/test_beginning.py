"""How a transaction begins: under its key of joint commits, or under a new one."""

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i64

from stablelog.client.core.beginning import begin_under_key
from stablelog.client.core.keys import ENDING_WAIT_S, WriterKey
from stablelog.errors import RefusedError, UnavailableError
from stablelog.wire.api import ApiKey
from tests.client.core.scripted import NONE, Brokers, reply


def given(request):
    return reply(request, error_code=NONE, producer_id=i64(41), producer_epoch=i16(2))


def refusing(code):
    return lambda request: reply(request, error_code=code, producer_id=i64(-1), producer_epoch=i16(-1))


class Beginning:
    def __init__(self, *answers, last_versions=None, group="g", may_be_ending=False):
        self.brokers = Brokers({"InitProducerId": list(answers)}, last_versions=last_versions)
        self.key = WriterKey(group, may_be_ending=may_be_ending)
        self.cluster = self.brokers.cluster(deadline_s=10)

    def begin(self, timeout_s=1.5):
        steps = begin_under_key(self.cluster, self.key, "token", timeout_s, {})
        return self.brokers.run(steps)

    def ids(self):
        return [request.transactional_id for _, request in self.brokers.requests("InitProducerId")]


def test_a_transaction_begins_under_its_key():
    beginning = Beginning(given)
    begun = beginning.begin()
    assert begun.key is beginning.key
    assert beginning.ids() == [begun.key.transactional_id] == [begun.ending.transactional_id]
    assert begun.producer.identity == (begun.key.transactional_id, 41, 2)


@pytest.mark.parametrize(("timeout_s", "asked_ms"), [(1.5, 1500), (0.0001, 1)])
def test_the_coordinator_gets_the_timeout_in_milliseconds_at_least_one(timeout_s, asked_ms):
    beginning = Beginning(given)
    beginning.begin(timeout_s)
    request = beginning.brokers.request("InitProducerId")
    assert request.transaction_timeout.total_seconds() * 1000 == asked_ms


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
    ],
    ids=lambda code: code.name,
)
def test_a_key_that_another_client_may_use_is_left_for_a_new_one_of_the_group(code):
    beginning = Beginning(refusing(code), given)
    begun = beginning.begin()
    assert begun.key.name != beginning.key.name
    assert begun.key.group == "g"
    assert beginning.ids() == [beginning.key.transactional_id, begun.key.transactional_id]


def test_any_other_refusal_is_the_error_of_the_call():
    beginning = Beginning(refusing(ErrorCode.transactional_id_authorization_failed))
    with pytest.raises(RefusedError, match="transactional id authorization failed"):
        beginning.begin()
    assert len(beginning.ids()) == 1


def test_a_key_whose_last_transaction_still_ends_is_waited_for_a_moment():
    busy = refusing(ErrorCode.coordinator_load_in_progress)
    beginning = Beginning(
        lambda request: (busy if request.transactional_id == beginning.key.transactional_id else given)(
            request
        ),
        may_be_ending=True,
    )
    begun = beginning.begin()
    assert begun.key.name != beginning.key.name
    assert ENDING_WAIT_S / 2 < beginning.brokers.now <= ENDING_WAIT_S


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_without_an_answer_a_key_is_not_left_unless_its_last_transaction_may_still_end(is_cancelled):
    beginning = Beginning(refusing(ErrorCode.coordinator_load_in_progress), may_be_ending=is_cancelled)
    if is_cancelled:
        beginning.cluster.cancel_retries()
    with pytest.raises(UnavailableError):
        beginning.begin()
    assert set(beginning.ids()) == {beginning.key.transactional_id}


def test_a_broker_without_joint_commits_has_the_default_group_alone():
    versions = {ApiKey.COMMIT_JOINT: -1}
    with pytest.raises(RefusedError, match="has no transaction group 'g'"):
        Beginning(given, last_versions=versions).begin()
    # The client id of the scripted connection is the beginning of the transactional id.
    assert not Beginning(given, last_versions=versions, group="").begin().ending.is_joint
