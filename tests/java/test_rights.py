"""Apache Kafka refuses what stablelog refuses, with the same error codes."""

import dataclasses
import itertools
import socket
import struct
import time

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v0.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v0.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.serial import entity_reader, entity_writer

from peers import apache_kafka
from stablelog.broker.security.access import every_operation
from stablelog.wire.acls import ResourceType
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import PREFIX, message_class
from tests.broker.apis.rights_cases import CASES, SUBSCRIBED, Names
from tests.broker.apis.test_rights import ask, conversation, error_codes, resource, rules
from tests.broker.desk import batch, filled, frame, produce_fields, read_answer
from tests.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.night, pytest.mark.filterwarnings("ignore")]

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="root" password="root" user_root="root" user_alice="alice";'
)
SECURED = {
    "listener_security_protocol_map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
    "listener_name_plaintext_plain_sasl_jaas_config": LOGIN,
    "listener_name_plaintext_sasl_enabled_mechanisms": "PLAIN",
    "sasl_enabled_mechanisms": "PLAIN",
    "sasl_mechanism_inter_broker_protocol": "PLAIN",
    "inter_broker_listener_name": "PLAINTEXT",
    "authorizer_class_name": AUTHORIZER,
    "super_users": "User:root;User:ANONYMOUS",
}
# The APIs of stablelog; and Kafka 4.2.1 does not answer a client that may not describe the cluster and asks for all users.
LEFT_OUT = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.BEGIN_JOINT,
    ApiKey.COMMIT_JOINT,
    ApiKey.ABORT_JOINT,
    ApiKey.DESCRIBE_CUT,
    ApiKey.DESCRIBE_COMMITS,
}


class Client:
    """A connection to Kafka on which a user has logged in."""

    def __init__(self, port, user):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._say(17, 1, SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse)
        token = f"\0{user}\0{user}".encode()
        answer = self._say(36, 0, SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        assert answer.error_code is ErrorCode.none, answer

    def _say(self, api_key, version, request, response):
        body = bytearray()

        class Into:
            write = staticmethod(body.extend)

        entity_writer(type(request))(Into, request)
        found = self._roundtrip(PREFIX.pack(api_key, version, 1) + b"\0\2me" + bytes(body))
        return entity_reader(response)(found, 4)[0]

    def _roundtrip(self, data):
        self._socket.sendall(struct.pack(">i", len(data)) + data)
        size = struct.unpack(">i", self._read(4))[0]
        return self._read(size)

    def _read(self, size):
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "Kafka has closed the connection"
            found += more
        return found

    def ask(self, api, version, values):
        message = filled(message_class(api, version, "request"), values)
        named = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
        return read_answer(api, version, self._roundtrip(frame(api, version, **named)))[0]

    def ask_with(self, api, version, fields):
        return read_answer(api, version, self._roundtrip(frame(api, version, **fields)))[0]


def furnish(root):
    """Make in Kafka what `furnish` of the handlers' test makes."""
    names = Names("here")
    topics = [
        {
            "name": names.topic,
            "num_partitions": 2,
            "replication_factor": 1,
            "assignments": (),
            "configs": (),
        }
    ]
    by_api = {case.api: case for case in CASES}
    create = {
        "topics": topics,
        "timeout": by_api[ApiKey.CREATE_TOPICS].values(names)["timeout"],
        "validate_only": False,
    }
    answer = root.ask(ApiKey.CREATE_TOPICS, 7, create)
    assert error_codes(answer) == [ErrorCode.none]
    init = next(case for case in CASES if case.api is ApiKey.INIT_PRODUCER_ID)
    found, last = [], []

    def initialised():
        # With this request Kafka creates the log of the coordinator.
        for kind, name in enumerate((names.group, names.txn)):
            root.ask(ApiKey.FIND_COORDINATOR, 5, {"key_type": kind, "coordinator_keys": (name,)})
        answer = root.ask(ApiKey.INIT_PRODUCER_ID, 5, init.values(names))
        found[:] = [(answer.producer_id, answer.producer_epoch)]
        last[:] = [answer.error_code]
        return answer.error_code is ErrorCode.none

    until(initialised, lambda: f"Kafka assigns no producer id: {last}", patience_s=20)
    names = Names("here", found[0])
    root.ask_with(ApiKey.PRODUCE, 9, produce_fields(9, names.topic, 0, batch(b"secret")))
    for api in (ApiKey.OFFSET_COMMIT,):
        case = by_api[api]
        until(
            lambda case=case: (
                set(error_codes(root.ask(case.api, case.version, case.values(names)))) == {ErrorCode.none}
            ),
            "Kafka commits no offset",
        )
    heartbeat = {
        **SUBSCRIBED,
        "group_id": "consumers-" + names.group,
        "subscribed_topic_names": (names.topic,),
        "subscribed_topic_regex": None,
    }
    until(
        lambda: (
            root.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat).error_code
            in (ErrorCode.none, ErrorCode.fenced_member_epoch)
        ),
        "Kafka has no consumer group",
    )
    return names


def creation(names, need):
    operation, kind, field = need
    return {
        "resource_type": kind,
        "resource_name": resource(names, field),
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": operation,
        "permission_type": 3,
    }


def removal(rule):
    return {
        "resource_type_filter": rule["resource_type"],
        "resource_name_filter": rule["resource_name"],
        "pattern_type_filter": 3,
        "principal_filter": "User:alice",
        "host_filter": None,
        "operation": rule["operation"],
        "permission_type": 3,
    }


def codes_of(answer):
    return sorted(code.name for code in error_codes(answer))


def test_kafka_refuses_with_the_same_codes():
    ours = {}

    async def talk(desk, names):
        authorizer = desk.broker.acls.authorizer
        for at, case in enumerate(CASES):
            for count in range(len(case.needs)):
                for needs in itertools.combinations(case.needs, count):
                    added = rules(names, needs)
                    authorizer.change(added=added)
                    answer = await ask(desk, case.api, version_for(case), case.values(names))
                    ours[at, needs] = codes_of(answer)
                    authorizer.change(removed=added)

    conversation(talk)
    try:
        with apache_kafka.serve(**SECURED) as kafka:
            differences = compare(kafka, ours)
            operations = authorized_operations(Client(kafka.port, "root"))
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(str(missing))
    assert operations == {kind: every_operation(kind) for kind in operations}
    assert not differences, "\n".join(map(str, differences))


def authorized_operations(root):
    """The operations of a super user, by the type of the resource."""
    names = Names("here")
    metadata = next(case for case in CASES if case.api is ApiKey.METADATA)
    groups = {"groups": (names.group,), "include_authorized_operations": True}
    cluster = {
        "include_cluster_authorized_operations": True,
        "endpoint_type": 1,
        "include_fenced_brokers": False,
    }
    return {
        ResourceType.TOPIC: root.ask(metadata.api, metadata.version, metadata.values(names))
        .topics[0]
        .topic_authorized_operations,
        ResourceType.GROUP: root.ask(ApiKey.DESCRIBE_GROUPS, 5, groups).groups[0].authorized_operations,
        ResourceType.CLUSTER: root.ask(ApiKey.DESCRIBE_CLUSTER, 1, cluster).cluster_authorized_operations,
    }


def version_for(case):
    return 5 if case.api is ApiKey.INIT_PRODUCER_ID else case.version


def compare(kafka, ours):
    root, alice = Client(kafka.port, "root"), Client(kafka.port, "alice")
    names = furnish(root)
    differences = []
    for (at, needs), codes in ours.items():
        case = CASES[at]
        # Version 5 has no two-phase commit, so it needs no further right than the first.
        is_whole = case.api is ApiKey.INIT_PRODUCER_ID and bool(needs)
        if case.api in LEFT_OUT or is_whole:
            continue
        added = [creation(names, need) for need in needs]
        if added:
            created = root.ask(ApiKey.CREATE_ACLS, 3, {"creations": added})
            assert set(error_codes(created)) == {ErrorCode.none}, created
            time.sleep(0.3)  # Kafka applies a change of ACLs after its response.
        try:
            theirs = codes_of(alice.ask(case.api, version_for(case), case.values(names)))
        except Exception as error:
            theirs = [repr(error)]
            alice = Client(kafka.port, "alice")
        if added:
            root.ask(ApiKey.DELETE_ACLS, 3, {"filters": [removal(rule) for rule in added]})
            time.sleep(0.3)
        if theirs != codes:
            differences.append((case.api.name, [(n[0].name, n[1].name) for n in needs], codes, theirs))
    return differences
