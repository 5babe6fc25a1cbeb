"""One connection: requests and responses in their order, versions, quotas, and what closes it."""

import itertools

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core import connection as core
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.connection import THROTTLE_MAX_S
from stablelog.client.core.partitions import fetch
from stablelog.client.core.security import read_security_settings
from stablelog.client.responses import ClosedError, RetriableError
from stablelog.errors import UnavailableError
from stablelog.wire.api import ApiKey
from tests.client.core.byte_script import ScriptedConnection, api_versions, drive, encoded, negotiated
from tests.client.core.scripted import reply
from tests.client.core.test_security import SASL
from tests.client.model_broker import ADDRESS, TOPIC, ModelBroker, ModelShell

METADATA = {ApiKey.METADATA: (0, 13), ApiKey.INIT_PRODUCER_ID: (0, 5)}


def request():
    from datetime import timedelta

    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

    return InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(minutes=1))


def response(number=41, throttle_ms=0):
    from datetime import timedelta

    throttle = timedelta(milliseconds=throttle_ms)
    return encoded(
        reply(
            request(), error_code=ErrorCode.none, producer_id=number, producer_epoch=0, throttle_time=throttle
        )
    )


def test_the_versions_and_the_features_are_asked_for_once():
    connection = ScriptedConnection([api_versions(METADATA, [("transaction.version", 2)])])
    for _ in range(2):
        drive(connection.negotiate(), connection)
    assert len(connection.sent) == 1
    assert connection.versions[ApiKey.METADATA] == (0, 13)
    assert connection.features == {"transaction.version": 2}


def test_an_old_broker_is_asked_for_its_versions_again_in_version_0():
    from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse

    old = ApiVersionsResponse(
        error_code=ErrorCode.none, api_keys=(ApiVersion(api_key=3, min_version=0, max_version=5),)
    )
    connection = ScriptedConnection([b"\0\x23" + bytes(4), encoded(old)])
    drive(connection.negotiate(), connection)
    assert [frame[6:8] for frame in connection.sent] == [b"\0\3", b"\0\0"]
    assert connection.versions == {3: (0, 5)}


@pytest.mark.parametrize(("version", "is_spoken"), [(0, True), (13, True), (14, False)])
def test_a_broker_speaks_an_api_up_to_its_last_version(version, is_spoken):
    connection = negotiated(METADATA)
    assert connection.supports_api(ApiKey.METADATA, version) is is_spoken
    assert not connection.supports_api(ApiKey.FETCH)


@pytest.mark.parametrize(("newest", "version"), [(20, 13), (13, 13), (5, 5)])
def test_the_newest_version_of_both_is_used(newest, version):
    assert negotiated(METADATA).newest_version(ApiKey.METADATA, newest) == version


@pytest.mark.parametrize(
    ("versions", "newest", "message"),
    [
        ({}, 5, "^h:1 does not support metadata$"),
        (
            {ApiKey.METADATA: (14, 20)},
            13,
            "supports metadata only from version 14 on, but this client only up to version 13",
        ),
    ],
)
def test_a_broker_without_a_common_version_is_named(versions, newest, message):
    with pytest.raises(UnavailableError, match=message):
        negotiated(versions).newest_version(ApiKey.METADATA, newest)


def test_a_request_is_answered_in_the_version_of_the_client_also_by_an_earlier_broker():
    for last in (5, 3):
        connection = negotiated({ApiKey.INIT_PRODUCER_ID: (0, last)}, [response()])
        found = drive(connection.request_steps(request()), connection)
        assert (found.producer_id, found.__version__) == (41, 5)
        assert connection.sent[0][6:8] == last.to_bytes(2)


def test_requests_that_are_sent_at_once_are_answered_in_their_order():
    connection = negotiated(METADATA, [response(1), response(2)])
    found = drive(connection.request_all_steps([request(), request()]), connection)
    assert [one.producer_id for one in found] == [1, 2]


def test_if_one_of_several_responses_is_lost_the_connection_is_closed():
    """Otherwise a later request would get the response that is outstanding."""
    connection = negotiated(METADATA, [response(1), TimeoutError("late")])
    with pytest.raises(UnavailableError, match=r"^h:1 did not respond to init_producer_id: late$"):
        drive(connection.request_all_steps([request(), request()]), connection)
    assert connection.is_closed


def test_a_request_that_cannot_be_sent_closes_the_connection():
    connection = negotiated(METADATA)
    connection.refuses = True
    with pytest.raises(UnavailableError, match=r"^h:1 did not accept init_producer_id: the broker is gone$"):
        drive(connection.request_steps(request()), connection)
    assert connection.is_closed


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_broker_that_closes_before_its_first_answer_may_have_another_security_protocol(has_answered):
    responses = [response()] * has_answered + [ConnectionResetError("closed")]
    connection = negotiated(METADATA, responses)
    if has_answered:
        drive(connection.request_steps(request()), connection)
    with pytest.raises(UnavailableError) as failed:
        drive(connection.request_steps(request()), connection)
    assert isinstance(failed.value, ClosedError) is not has_answered


def test_a_response_that_cannot_be_decoded_closes_the_connection():
    connection = negotiated(METADATA, [response()[:-3]])
    with pytest.raises(UnavailableError, match=r"^h:1 sent an invalid response to init_producer_id: "):
        drive(connection.request_steps(request()), connection)
    assert connection.is_closed


def test_an_exception_of_the_program_closes_the_connection_and_stays_what_it_is():
    connection = negotiated(METADATA)
    steps = connection.request_steps(request())
    steps.send(None)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    assert connection.is_closed


@pytest.mark.parametrize(("throttle_ms", "pause_s"), [(1500, 1.5), (2**31 - 1, THROTTLE_MAX_S)])
def test_a_client_above_a_quota_waits_before_its_next_request_for_a_limited_time(throttle_ms, pause_s):
    connection = negotiated(METADATA, [response(throttle_ms=throttle_ms), response()])
    drive(connection.request_steps(request()), connection)
    assert connection.pauses == [], "the response is used at once"
    drive(connection.request_steps(request()), connection)
    assert connection.pauses == [pause_s]


def test_a_wait_for_a_quota_that_was_cut_short_goes_on_with_the_next_request():
    connection = negotiated(METADATA, [response(throttle_ms=4000), response()])
    drive(connection.request_steps(request()), connection)
    perform = connection.perform
    connection.perform = lambda effect: None if type(effect).__name__ == "Pause" else perform(effect)
    with pytest.raises(
        RetriableError, match=r"^h:1: the client is above its quota, and may send .* in 4\.0 s$"
    ):
        drive(connection.request_steps(request()), connection)
    connection.perform = perform
    drive(connection.request_steps(request()), connection)
    assert connection.pauses == [4.0]


def test_an_api_without_a_name_is_named_by_its_number():
    with pytest.raises(UnavailableError, match=r"^h:1 does not support API 999$"):
        negotiated({}).newest_version(999, 0)


def test_a_client_above_a_quota_waits_before_its_next_request_to_the_broker():
    """As Kafka's clients: the broker begins no request before, so the request would time out."""
    sent = []

    def note(key):
        sent.append((key, shell.now))
        if [key for key, _ in sent].count(ApiKey.FETCH) == 2:
            broker.throttle_ms = 0

    broker = ModelBroker()
    shell = ModelShell(broker, note)
    broker.write_outside(0, [b"x"])
    broker.throttle_ms = 12_000  # longer than a client waits for a response
    fetched = shell.run(fetch(Cluster(ADDRESS, deadline_s=30), TOPIC, 0, 0))
    assert fetched.records
    times = [time for key, time in sent if key is not None]
    assert all(later - earlier >= 12 for earlier, later in itertools.pairwise(times))
    assert [key for key, _ in sent if key == ApiKey.FETCH] == [ApiKey.FETCH] * 2


def test_requests_in_flight_are_answered_around_an_authentication():
    """Their responses are received before it, and returned after it."""
    steps = []

    class Connection(core.BrokerConnection):
        is_closed = False

        def close(self):
            raise AssertionError("closed")

        after_fork = close

        def authenticate(self):
            assert not self.is_awaiting
            self.renew_at = None
            steps.append("login")
            return
            yield

    security = read_security_settings({**SASL, "sasl.username": "a", "sasl.password": "b"})
    connection = Connection("h:1", "me", security)
    connection.renew_at = 5.0
    responses = iter([b"\0\0\0\5", b"\0\0\0\1A", b"\0\0\0\5", b"\0\0\0\2B", b"\0\0\0\5", b"\0\0\0\3C"])

    def run(work, now):
        answer = None
        try:
            while True:
                effect = work.send(answer)
                kind = type(effect).__name__
                steps.append(kind)
                answer = now if kind == "Now" else memoryview(next(responses)) if kind == "Receive" else None
        except StopIteration as end:
            return end.value

    for now in (1.0, 2.0):
        run(connection.send_steps(3, 0, [b"x"], flexible=False), now)
    assert "login" not in steps
    run(connection.send_steps(3, 0, [b"x"], flexible=False), 6.0)
    assert steps[-6:] == ["Receive"] * 4 + ["login", "Send"]
    found = [bytes(run(connection.receive_steps(flexible=False), 7.0)) for _ in range(3)]
    assert found == [b"A", b"B", b"C"]
