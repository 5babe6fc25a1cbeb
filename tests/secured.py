"""Brokers with TLS and SASL, for the tests of clients: certificates, one broker with each kind of listener, and users."""

import contextlib

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

import stablelog
from peers.apache_kafka import reserve_ports
from tests.cli.test_cli import run

USER, PASSWORD = "alice", 'Alice, "s secret" 5=ü'
MECHANISM = "SCRAM-SHA-512"
NAMES = ("SASL_SSL", "SSL", "SASL_PLAINTEXT", "PLAINTEXT")


def jaas(user=USER, password=PASSWORD, module="scram.ScramLoginModule"):
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return f'org.apache.kafka.common.security.{module} required username="{user}" password="{quoted}";'


class Certificates:
    """The files of an authority, of a broker's key and of a client's key.

    Attributes:
        trust: the authority's certificate.
        broker: the broker's key and certificate.
        client: the client's key and certificate.
        stranger: the certificate of another authority.
    """

    def __init__(self, folder, names=("localhost", "127.0.0.1")):
        authority, other = trustme.CA(), trustme.CA()
        self.trust, self.broker = folder / "authority.pem", folder / "broker.pem"
        self.client, self.stranger = folder / "client.pem", folder / "stranger.pem"
        self.foreign = folder / "foreign.pem"
        self.issued = authority.issue_cert("client", common_name="carol")
        self.trust.write_bytes(authority.cert_pem.bytes())
        self.stranger.write_bytes(other.cert_pem.bytes())
        _write(self.broker, authority.issue_cert(*names))
        _write(self.client, self.issued)
        _write(self.foreign, other.issue_cert("client", common_name="mallory"))
        self.key = key_of(self.issued).decode()
        self.chain = b"".join(part.bytes() for part in self.issued.cert_chain_pems).decode()

    def encrypted_key(self, password):
        """The client's key in PEM format, encrypted with a password."""
        key = serialization.load_pem_private_key(self.key.encode(), None)
        hidden = BestAvailableEncryption(password.encode())
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden).decode()

    def trusting(self, **more):
        """The settings of a client that trusts the authority, with `_` for each `.` of a name."""
        return {"ssl.truststore.location": str(self.trust)} | {
            name.replace("_", "."): value for name, value in more.items()
        }


def key_of(issued):
    """The key in the form PKCS #8, the only one that Java reads."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path, issued):
    path.write_bytes(key_of(issued) + b"".join(part.bytes() for part in issued.cert_chain_pems))


class Secured:
    """A broker with a listener of each security protocol.

    Attributes:
        broker: the broker.
        at: the addresses by security protocol.
        certificates: of the broker and its clients.
        login: the settings of a client of SASL_SSL.
        mutual: the settings of a client of SSL, which asks for certificates.
    """

    def __init__(self, broker, ports, certificates):
        self.broker, self.certificates = broker, certificates
        self.at = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)}
        self.login = login(certificates)
        self.mutual = certificates.trusting(
            security_protocol="SSL", ssl_keystore_location=str(certificates.client)
        )

    def settings(self, protocol):
        """The settings of a client of this listener."""
        user = {"sasl.mechanism": MECHANISM, "sasl.jaas.config": jaas()}
        return {
            "SASL_SSL": self.login,
            "SSL": self.mutual,
            "SASL_PLAINTEXT": {"security.protocol": "SASL_PLAINTEXT", **user},
            "PLAINTEXT": {},
        }[protocol]


def login(certificates):
    return certificates.trusting(
        security_protocol="SASL_SSL", sasl_mechanism=MECHANISM, sasl_jaas_config=jaas()
    )


@contextlib.contextmanager
def secured(folder, names=("localhost", "127.0.0.1"), **settings):
    """Run such a broker. Its user `alice` has SCRAM credentials; it may use PLAIN, too.

    Args:
        folder: for the data and the certificates.
        names: the host names in the certificate of the broker.
        settings: more settings of the broker.
    """
    certificates = Certificates(folder, names)
    data = folder / "data"
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        added = run(
            "users",
            "add",
            USER,
            "--data",
            str(data),
            "--mechanism",
            mechanism,
            "--password-file",
            "-",
            given=PASSWORD,
        )
        assert added.returncode == 0, added.stderr
    owner = contextlib.ExitStack()
    ports = reserve_ports(owner, len(NAMES))
    given = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "ssl.keystore.location": str(certificates.broker),
        "ssl.truststore.location": str(certificates.trust),
        "listener.name.ssl.ssl.client.auth": "required",
        **settings,
    }
    with stablelog.serve(data, settings=given) as broker:
        yield Secured(broker, ports, certificates)
