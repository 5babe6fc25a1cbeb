"""Each message that names an option, a setting or a command to use has a row, which takes the advice and sees the error end."""

import functools
import re

import pytest

import stablelog
from tests.advice.cli_rows import CLI
from tests.advice.client_rows import CLIENT
from tests.advice.doctor_rows import DOCTOR
from tests.advice.health_rows import HEALTH
from tests.advice.messages import every_message
from tests.advice.spark_rows import SPARK
from tests.advice.steps import User
from tests.advice.store_rows import STORES

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TABLE = {"cli": CLI + HEALTH, "client": CLIENT, "spark": SPARK + STORES, "ops": DOCTOR}
# Messages that name an option and advise nothing, each with the reason.
NO_ADVICE = {
    "abort() was called": "It reports what the program did.",
    "the new Spark session has these settings": "It reports what was done, and nothing is to be done.",
    "Another call of commit() cannot help: read the topics": "A commit that the broker has forgotten is a day old, and "
    "no call of the client ends the error: the program looks at its records.",
    "needs the extra cli: pip install": "tests/test_packages.py follows it, in an environment without the extra.",
    "Give it more memory, or lower queued.max.request.bytes": "A test cannot take memory from the machine.",
    "txnAppId {options.app_id} for {target}": "It is the name of a write in other messages.",
}


@functools.cache
def messages():
    return [message for message in every_message() if message.names]


def found_by(room, text):
    """The messages of a room with this text: one, or the same one in several modules."""
    return [message for message in messages() if message.room == room and text in message.text]


def test_each_message_that_names_what_to_use_has_a_row():
    without = [
        f"{message.module} names {', '.join(message.names)}: {message.text}"
        for message in messages()
        if not any(text in message.text for text in [*(row.text for row in TABLE[message.room]), *NO_ADVICE])
    ]
    assert len(messages()) > 150
    assert without == [], "tests/advice has no row for these messages"


@pytest.mark.parametrize("room", TABLE)
def test_each_row_has_one_message(room):
    """A message may stand in several modules, and be a part of a longer one."""
    for row in TABLE[room]:
        templates = sorted((message.template for message in found_by(room, row.text)), key=len)
        assert templates, row.text
        assert all(templates[0] in template for template in templates), (row.text, templates)
    for text in NO_ADVICE:
        assert any(text in message.text for message in messages()), text


@pytest.fixture(scope="module")
def broker(module_path):
    settings = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "stablelog.produce.proof": "header",
        "stablelog.metrics.port": 0,
        "group.consumer.heartbeat.interval.ms": 100,
    }
    with stablelog.serve(module_path / "broker", settings=settings) as broker:
        yield broker


@pytest.fixture
def user(request, broker, tmp_path):
    user = User(request, broker, tmp_path)
    with user.cleanup:
        yield user


def marks(row):
    if row.night:
        yield pytest.mark.night
    if row.group:
        yield pytest.mark.xdist_group(row.group)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("room", "row"),
    [
        pytest.param(room, row, marks=list(marks(row)), id=f"{room}: {row.text[:60]}")
        for room, rows in TABLE.items()
        for row in rows
    ],
)
def test_the_advice_ends_the_error(user, room, row):
    messages = found_by(room, row.text)
    shown = row.error(user)
    user.shown = shown.text
    assert any(message.is_in(shown.text) for message in messages), shown.text
    for take in row.advice:
        seen = take(user)
        assert seen.is_done, seen.text
        assert not any(message.is_in(seen.text) for message in messages), seen.text
        assert re.search(row.seen, seen.text), seen.text
