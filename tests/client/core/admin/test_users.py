"""The users that log in with SCRAM, or with PLAIN and a stored credential."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core.admin.users import Credential, list_users, remove_password, set_password
from stablelog.errors import RefusedError
from stablelog.wire.sasl.scram import SALT_SIZE, Mechanism, salted_password
from tests.client.core.scripted import NONE, Brokers, part, reply


def listed(*users, code=NONE):
    def answer(request):
        results = tuple(
            part(
                request,
                "DescribeUserScramCredentialsResult",
                user=user,
                error_code=code,
                error_message=None,
                credential_infos=tuple(
                    part(request, "CredentialInfo", mechanism=number, iterations=4096)
                    for number in mechanisms
                ),
            )
            for user, mechanisms in users
        )
        return reply(request, error_code=NONE, error_message=None, results=results)

    return answer


def altered(code=NONE, message=None):
    def answer(request):
        result = part(
            request, "AlterUserScramCredentialsResult", user="a", error_code=code, error_message=message
        )
        return reply(request, results=(result,))

    return answer


def test_credentials_are_listed_in_the_order_of_names():
    brokers = Brokers({"DescribeUserScramCredentials": listed(("b", (2, 1)), ("a", (2,)))})
    assert brokers.run(list_users(brokers.cluster())) == [
        Credential("a", Mechanism.SHA_512, 4096),
        Credential("b", Mechanism.SHA_256, 4096),
        Credential("b", Mechanism.SHA_512, 4096),
    ]


def test_the_user_that_cannot_be_shown_is_named():
    brokers = Brokers({"DescribeUserScramCredentials": listed(("b", ()), code=ErrorCode.resource_not_found)})
    with pytest.raises(RefusedError, match=r"^user 'b': resource not found"):
        brokers.run(list_users(brokers.cluster()))


def test_the_broker_gets_the_salted_password_and_not_the_password():
    brokers = Brokers({"AlterUserScramCredentials": altered()})
    brokers.run(set_password(brokers.cluster(), "a", "secret", mechanism=Mechanism.SHA_256, iterations=4096))
    request = brokers.request("AlterUserScramCredentials")
    (one,) = request.upsertions
    assert (one.name, one.mechanism, one.iterations, len(one.salt)) == ("a", 1, 4096, SALT_SIZE)
    assert one.salted_password == salted_password(Mechanism.SHA_256, "secret", one.salt, 4096)
    assert b"secret" not in one.salted_password
    assert request.deletions == ()


def test_each_password_has_a_salt_of_its_own():
    brokers = Brokers({"AlterUserScramCredentials": altered()})
    for _ in range(2):
        brokers.run(set_password(brokers.cluster(), "a", "secret", iterations=4096))
    salts = {request.upsertions[0].salt for _, request in brokers.requests("AlterUserScramCredentials")}
    assert len(salts) == 2


def test_a_credential_is_removed_for_one_mechanism():
    brokers = Brokers({"AlterUserScramCredentials": altered()})
    brokers.run(remove_password(brokers.cluster(), "a", Mechanism.SHA_512))
    request = brokers.request("AlterUserScramCredentials")
    assert [(one.name, one.mechanism) for one in request.deletions] == [("a", 2)]
    assert request.upsertions == ()


def test_a_refusal_names_the_user_and_has_the_brokers_words():
    brokers = Brokers({"AlterUserScramCredentials": altered(ErrorCode.resource_not_found, "no credential")})
    with pytest.raises(RefusedError, match=r"^user 'a': no credential"):
        brokers.run(remove_password(brokers.cluster(), "a", Mechanism.SHA_512))
