"""Keys and certificates: what is loaded, and what is said of a file that cannot be used."""

import os
import ssl
import tempfile

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from stablelog.env.pem import PemError, load_authorities, load_key

PASSWORD = "s3cr3t-value"
STORE = "only PEM files are read: `openssl pkcs12"


@pytest.fixture(scope="module")
def files(module_path):
    """Files by name, in the forms in which users have keys and certificates."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    chain = issued.cert_chain_pems[0].bytes()
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    certificate = x509.load_pem_x509_certificate(chain)
    hidden = BestAvailableEncryption(PASSWORD.encode())
    contents = {
        "good": issued.private_key_pem.bytes() + chain,
        "authority": authority.cert_pem.bytes(),
        "named authority": "# Autorität Köln\n".encode() + authority.cert_pem.bytes(),
        "encrypted": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden) + chain,
        "old encrypted": key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, hidden) + chain,
        "pkcs12": pkcs12.serialize_key_and_certificates(b"x", key, certificate, None, hidden),
        "der": certificate.public_bytes(Encoding.DER),
        "jks": b"\xfe\xed\xfe\xed\0\0\0\2\xff\xff",
        "text": b"0 is no certificate",
    }
    for name, content in contents.items():
        (module_path / name).write_bytes(content)
    return {name: str(module_path / name) for name in contents}


def context():
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.mark.parametrize("name", ["authority", "named authority"])
def test_certificates_may_have_names_in_any_language_between_them(files, name):
    """Bundles of certificates name each authority in a comment."""
    with open(files[name], encoding="utf-8") as file:
        text = file.read()
    for path, given in ((files[name], ""), ("", text)):
        loaded = context()
        load_authorities(loaded, path, given)
        assert len(loaded.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pkcs12", STORE),
        ("der", STORE),
        ("jks", STORE),
        ("text", "it has no certificate"),
        ("none", "No such"),
        ("a null character: \0", "it has no certificate"),
    ],
)
def test_a_store_that_is_not_read_is_told_with_what_to_do(files, name, told):
    path = files.get(name, name)
    with pytest.raises(PemError, match=told):
        load_authorities(context(), path, "")
    with pytest.raises(PemError, match=told.replace("certificate", "key or no certificate")):
        load_key(context(), path, "", PASSWORD)


@pytest.mark.parametrize("name", ["encrypted", "old encrypted"])
def test_an_encrypted_key_needs_its_password(files, name):
    load_key(context(), files[name], "", PASSWORD)
    for password, told in (("", "ssl.key.password is not set"), ("no", "is wrong"), ("x" * 2000, "is wrong")):
        with pytest.raises(PemError, match=told) as refused:
            load_key(context(), files[name], "", password)
        assert PASSWORD not in str(refused.value)


def test_a_password_for_a_key_that_is_not_encrypted_has_no_effect(files):
    load_key(context(), files["good"], "", PASSWORD)


@pytest.mark.parametrize("has_memory_files", [True, False])
def test_a_key_as_text_stays_in_no_file(files, tmp_path, monkeypatch, has_memory_files):
    made = []

    def make(**options):
        made.append(options)
        return make_file(dir=tmp_path, **options)

    make_file = tempfile.mkstemp
    monkeypatch.setattr(tempfile, "mkstemp", make)
    if not has_memory_files:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    has_memory_files = hasattr(os, "memfd_create")
    with open(files["good"]) as file:
        load_key(context(), "", file.read(), "")
    assert bool(made) is not has_memory_files
    with pytest.raises(PemError, match="it has no key or no certificate in PEM format"):
        load_key(context(), "", "text", "")
    assert list(tmp_path.iterdir()) == []
