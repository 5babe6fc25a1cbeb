"""A broker whose only listener needs a login, and clients that log in."""

import asyncio
import contextlib
import time

import stablelog
from stablelog.wire.sasl import MECHANISMS, OAUTHBEARER
from tests.cli.test_cli import run
from tests.security.keys import document, private_key, public, token

PASSWORD = "alice,=secret ü"
WRONG = "wrong-secret"
TIMEOUT_S = 60
LISTENER = "listener.name.sasl_plaintext."


def keys_file(directory):
    """A file with the keys of an authorization server. Returns its URL."""
    path = directory / "keys.json"
    path.write_bytes(document(public(private_key(), kid="one")))
    return path.as_uri()


def bearer(user="alice", *, lifetime_s=3600):
    """A token for a user, which ends at this time."""
    now_s = int(time.time())
    return token(private_key(), now_s=now_s, sub=user, exp=now_s + lifetime_s)


def sasl_settings(directory, **more):
    """The settings of a broker with each mechanism: `carol` is a user of the settings."""
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{LISTENER}plain.sasl.jaas.config": 'PlainLoginModule required user_carol="carol-secret";',
        "sasl.oauthbearer.jwks.endpoint.url": keys_file(directory),
        "group.initial.rebalance.delay.ms": "0",
        **more,
    }


def add_user(data, user="alice", password=PASSWORD):
    """Add a user to the directory of a broker that does not run."""
    both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512")
    done = run("users", "add", user, "--data", str(data), "--password-file", "-", *both, given=password)
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def served(directory, **more):
    """A running broker with the user `alice`."""
    add_user(directory / "data")
    with stablelog.serve(directory / "data", settings=sasl_settings(directory, **more)) as broker:
        yield broker


def librdkafka(bootstrap, mechanism, password=PASSWORD, user="alice", **more):
    """The settings of confluent-kafka."""
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "log_level": 0,
        **more,
    }
    if mechanism == OAUTHBEARER:
        return settings | {"oauth_cb": lambda _config: (password, time.time() + 3600)}
    return settings | {"sasl.username": user, "sasl.password": password}


def java(mechanism, password=PASSWORD, user="alice"):
    """The settings of the Java client."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}";',
    }


# Each driver writes a record and reads it again, and returns the value. A failed login raises an error; kafka-python
# tries again until its patience ends.


def confluent(bootstrap, mechanism, password, topic, *, patience_s=TIMEOUT_S):
    from confluent_kafka import Consumer, KafkaException, Producer

    errors = []
    settings = librdkafka(bootstrap, mechanism, password, error_cb=errors.append)
    producer = Producer(settings)
    producer.produce(topic, b"value", partition=0)
    deadline = time.monotonic() + patience_s
    while len(producer) and not any("uthentication" in error.str() for error in errors):
        assert time.monotonic() < deadline, errors
        producer.poll(0.05)
    if len(producer):
        producer.purge()
        producer.flush(1)
        raise KafkaException(errors[0])
    consumer = Consumer(settings | {"group.id": f"group-{mechanism}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    return message.value()


def kafka_python(bootstrap, mechanism, password, topic, *, patience_s=TIMEOUT_S):
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def token(self):
            return password

    settings = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "bootstrap_timeout_ms": patience_s * 1000,
    }
    if mechanism == OAUTHBEARER:
        settings["sasl_oauth_token_provider"] = Provider()
    else:
        settings |= {"sasl_plain_username": "alice", "sasl_plain_password": password}
    producer = KafkaProducer(**settings)
    try:
        producer.send(topic, b"value", partition=0).get(TIMEOUT_S)
    finally:
        producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **settings)
    try:
        return next(consumer).value
    finally:
        consumer.close()


def aiokafka(bootstrap, mechanism, password, topic, *, patience_s=TIMEOUT_S):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        async def token(self):
            return password

    async def work():
        settings = {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
        }
        if mechanism == OAUTHBEARER:
            settings["sasl_oauth_token_provider"] = Provider()
        else:
            settings |= {"sasl_plain_username": "alice", "sasl_plain_password": password}
        producer = AIOKafkaProducer(**settings)
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"value", partition=0)
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings)
        await consumer.start()
        try:
            return (await consumer.getone()).value
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(work(), patience_s))


DRIVERS = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}
