"""The subject of a certificate as Java writes it: the text that ACLs name."""

import contextlib
import datetime as dt
import random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stablelog.security.distinguished_name import subject_of

KEY = ec.generate_private_key(ec.SECP256R1())
MULTI = [(NameOID.COMMON_NAME, "a"), (NameOID.USER_ID, "b")]


def certificate(*relative):
    """A certificate in DER whose subject has these relative names, each a list of (attribute, value)."""
    name = x509.Name(
        [x509.RelativeDistinguishedName([x509.NameAttribute(*pair) for pair in pairs]) for pairs in relative]
    )
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    ("relative", "expected"),
    [
        (
            [
                [(NameOID.COUNTRY_NAME, "DE")],
                [(NameOID.STATE_OR_PROVINCE_NAME, "Hessen")],
                [(NameOID.LOCALITY_NAME, "Kassel")],
                [(NameOID.ORGANIZATION_NAME, "Example, Inc.")],
                [(NameOID.ORGANIZATIONAL_UNIT_NAME, 'a+b"c\\d<e>;')],
                [(NameOID.COMMON_NAME, "Jürgen")],
            ],
            'CN=Jürgen,OU=a\\+b\\"c\\\\d\\<e\\>\\;,O=Example\\, Inc.,L=Kassel,ST=Hessen,C=DE',
        ),
        ([[(NameOID.COMMON_NAME, " # a ")]], "CN=\\ # a\\ "),
        ([[(NameOID.COMMON_NAME, "#a")]], "CN=\\#a"),
        ([[(NameOID.DOMAIN_COMPONENT, "org")], [(NameOID.DOMAIN_COMPONENT, "example")]], "DC=example,DC=org"),
        ([[(NameOID.EMAIL_ADDRESS, "a@b")]], "1.2.840.113549.1.9.1=#1603614062"),
        ([], ""),
    ],
)
def test_the_name_is_that_of_java(relative, expected):
    assert subject_of(certificate(*relative)) == expected


def test_attributes_of_one_relative_name_are_joined_with_a_plus():
    assert set(subject_of(certificate(MULTI)).split("+")) == {"CN=a", "UID=b"}


def test_truncated_and_changed_certificates_are_refused_or_read_and_nothing_else():
    whole = certificate([(NameOID.COMMON_NAME, "alice")])
    changing = random.Random(1)
    broken = [whole[:size] for size in range(len(whole))]
    for _ in range(2000):
        changed = bytearray(whole)
        changed[changing.randrange(len(changed))] = changing.randrange(256)
        broken.append(bytes(changed))
    for data in broken:
        with contextlib.suppress(ValueError):  # UnicodeDecodeError is one
            assert isinstance(subject_of(data), str)
