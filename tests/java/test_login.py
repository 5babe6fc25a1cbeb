"""The native client, the commands and Spark against Apache Kafka with TLS and SCRAM."""

import subprocess
import time

import pytest

import stablelog
from peers import apache_kafka
from stablelog.client.blocking.cluster import EARLIEST, BlockingCluster
from stablelog.client.core.security import read_security_settings
from stablelog.errors import AuthenticationError, RefusedError
from tests.commands import run
from tests.java.dump import SHORT_LIVED
from tests.secured import PASSWORD, USER, Certificates, jaas, login
from tests.spark.reading import make
from tests.spark.starting import in_time

pytestmark = [pytest.mark.java, pytest.mark.night, pytest.mark.filterwarnings("ignore")]


SESSION_S = 3.0  # the sessions of SASL_SSL end after this time


class Kafka:
    """Apache Kafka with a listener of SASL_SSL, and one of SSL that asks for certificates.

    Attributes:
        at: the addresses by security protocol.
        settings: the settings of a client by security protocol.
        certificates: of the broker and its clients.
    """

    def __init__(self, folder):
        self.certificates = files = Certificates(folder)
        secure, mutual = apache_kafka.reserve_ports(self, 2)
        self.at = {"SASL_SSL": f"127.0.0.1:{secure}", "SSL": f"127.0.0.1:{mutual}"}
        self.settings = {
            "SASL_SSL": login(files),
            "SSL": files.trusting(security_protocol="SSL", ssl_keystore_location=str(files.client)),
        }
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        given = {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(files.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(files.trust),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
            "listener.name.sasl_ssl.scram-sha-512.connections.max.reauth.ms": str(int(1000 * SESSION_S)),
        }
        self.broker = apache_kafka.KafkaBroker(folder / "kafka", given, SHORT_LIVED, more_listeners=self.at)

    def start(self):
        self.broker.start()
        add = f"SCRAM-SHA-512=[iterations=4096,password={SIMPLE}]"
        words = ("--bootstrap-server", self.broker.bootstrap, "--alter", "--add-config", add)
        apache_kafka.run_tool(
            "kafka.admin.ConfigCommand", *words, "--entity-type", "users", "--entity-name", USER
        )


# kafka-configs.sh divides its arguments at commas.
SIMPLE = PASSWORD.replace(",", "").replace('"', "")


@pytest.fixture(scope="module")
def kafka(module_path):
    try:
        kafka = Kafka(module_path)
        kafka.start()
    except apache_kafka.NotAvailableError as missing:
        pytest.skip(f"Apache Kafka is not to be had: {missing}")
    except subprocess.CalledProcessError as failed:
        pytest.fail(failed.stdout + failed.stderr)
    kafka.settings["SASL_SSL"]["sasl.jaas.config"] = jaas(password=SIMPLE)
    yield kafka
    kafka.broker.stop()


def properties(path, settings):
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
def test_commands_and_the_client_connect(kafka, tmp_path, protocol):
    given = ["--command-config", properties(tmp_path / "c", kafka.settings[protocol])]
    at, topic = kafka.at[protocol], f"of-{protocol.lower()}"
    assert run("topics", "create", topic, *given, bootstrap=at).returncode == 0
    assert run("produce", topic, *given, bootstrap=at, given="a\nb\n").returncode == 0
    consumed = run("consume", topic, *given, bootstrap=at)
    assert consumed.stdout == "a\nb\n", consumed.stderr
    with BlockingCluster(at, security=read_security_settings(kafka.settings[protocol])) as cluster:
        assert len(cluster.metadata([topic])[topic].partitions) == 1
        assert cluster.list_offsets({(topic, 0): EARLIEST})[topic, 0].offset == 0
        assert cluster.fetch(topic, 0, 0).records
    with stablelog.connect(at, settings=kafka.settings[protocol]) as client:
        # The client of transactions logs in, and is then told that this is no stablelog broker.
        with pytest.raises(RefusedError, match="only a stablelog broker supports") as refused:
            list(client.read(topic, cut=True, wait=1))
        assert not isinstance(refused.value, AuthenticationError)


def test_what_is_wrong_is_told(kafka):
    login, mutual = kafka.settings["SASL_SSL"], kafka.settings["SSL"]
    files = kafka.certificates
    for listener, settings, told in (
        ("SASL_SSL", login | {"sasl.jaas.config": jaas(password="wrong")}, "Check user name and password"),
        (
            "SASL_SSL",
            login | {"sasl.mechanism": "SCRAM-SHA-256"},
            "set sasl.mechanism to one of SCRAM-SHA-512",
        ),
        ("SASL_SSL", login | {"ssl.truststore.location": str(files.stranger)}, "certificate is not accepted"),
        ("SASL_SSL", {}, "set security.protocol=SASL_SSL"),
        ("SASL_SSL", mutual, "set security.protocol=SASL_SSL"),
        ("SSL", {key: mutual[key] for key in mutual if "key" not in key}, "requires a client certificate"),
        (
            "SSL",
            mutual | {"ssl.keystore.location": str(files.foreign)},
            "does not accept the client's certificate",
        ),
        ("PLAINTEXT", login, "set security.protocol=PLAINTEXT"),
    ):
        at = kafka.at.get(listener, kafka.broker.bootstrap)
        with BlockingCluster(at, security=read_security_settings(settings)) as cluster:
            with pytest.raises(AuthenticationError) as refused:
                cluster.metadata()
            assert told in str(refused.value)


def test_the_client_authenticates_again_before_its_session_ends(kafka):
    with BlockingCluster(
        kafka.at["SASL_SSL"], security=read_security_settings(kafka.settings["SASL_SSL"])
    ) as cluster:
        first = cluster.any_connection()
        ends = time.monotonic() + 3 * SESSION_S
        logins = {first.renew_at}
        while time.monotonic() < ends:
            cluster.metadata()
            logins.add(first.renew_at)
        assert cluster.any_connection() is first
        assert len(logins) > 3
        time.sleep(SESSION_S + 0.5)  # the session has ended, and no request was sent
        cluster.metadata()
        assert cluster.any_connection() is first


@pytest.mark.spark
@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
def test_spark_reads_and_writes(spark, kafka, tmp_path, protocol):
    topic, target = f"spark-{protocol.lower()}", f"copied-{protocol.lower()}"
    given = {f"kafka.{name}": value for name, value in kafka.settings[protocol].items()}
    given["kafka.bootstrap.servers"] = kafka.at[protocol]
    for name in (topic, target):
        make(kafka.broker.bootstrap, name, 2)
    rows = spark.range(20).selectExpr("cast(id as string) value")
    writer = rows.write.format("stablelog").mode("append").options(**given, topic=topic)
    writer.option("guarantee", "at-least-once").save()
    stream = spark.readStream.format("stablelog").options(startingOffsets="earliest", **given)
    copier = stream.option("subscribe", topic).load().select("value").writeStream.format("stablelog")
    copier = copier.options(**given, topic=target, guarantee="at-least-once")
    copier = copier.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert in_time(copier.start).awaitTermination(300)
    for name in (topic, target):
        read = spark.read.format("stablelog").options(**given, subscribe=name).load()
        assert sorted(int(row.value) for row in read.collect()) == list(range(20))
