"""What a row of the table does: it makes an error as a user would, and takes the advice of its message."""

import contextlib
import io
import logging
import re
import shlex
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from string import Template
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer

import stablelog
from stablelog.errors import StablelogError
from tests.clients.drivers import unique
from tests.commands import run
from tests.spark.reading import make

VALUES = (b"one", b"two", b"three")
# Commands that ask no broker.
WITHOUT_BROKER = ("health", "repair", "verify", "storage", "restore", "inspect")


class Seen(NamedTuple):
    """What a user sees after a step.

    Attributes:
        is_done: whether the step did what the user wanted.
        text: the output, the error and the warnings.
    """

    is_done: bool
    text: str


class Member:
    """A member of a group that polls, as a program does."""

    def __init__(self, bootstrap, topic, group):
        settings = {
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "a-member",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
        self._consumer.subscribe([topic])
        self._has_assignment, self._is_closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()
        assert self._has_assignment.wait(60), "the member got nothing"

    def _poll(self):
        while not self._is_closed.is_set():
            self._consumer.poll(0.1)
            if self._consumer.assignment():
                self._has_assignment.set()
        self._consumer.close()

    def metadata(self):
        return self._consumer.consumer_group_metadata()

    def close(self):
        self._is_closed.set()
        self._thread.join()


class User:
    """A user with a broker: names of topics and groups that are made when a step first names them.

    Args:
        request: pytest's, for the fixtures that a step needs.
        broker: the broker of all rows.
        path: a directory of this row.
    """

    def __init__(self, request, broker, path):
        self.request, self.broker, self.path = request, broker, path
        self.bootstrap = broker.bootstrap
        self.cleanup = contextlib.ExitStack()
        self._names = {"path": str(path), "bootstrap": self.bootstrap, "data": str(broker.data)}

    def __getitem__(self, name):
        """A name that a step puts into its words."""
        if name == "store":
            return self.fixture("tiers").url
        if name in ("metrics", "metrics_port"):
            (address,) = re.findall(r"metrics are served at http://(\S+)/metrics", self.broker.log_tail(1000))
            return address if name == "metrics" else address.rpartition(":")[2]
        if name in FIXTURES:
            return str(FIXTURES[name](self.fixture(name)))
        if name not in self._names:
            self._names[name] = unique(name)
            if name in MAKERS:
                MAKERS[name](self, self._names[name])
        return self._names[name]

    def __setitem__(self, name, value):
        self._names[name] = str(value)

    def fill(self, words):
        """Put names into a text; also into the texts of a mapping."""
        if isinstance(words, dict):
            return {self.fill(key): self.fill(value) for key, value in words.items()}
        return Template(words).substitute(self) if isinstance(words, str) else words

    def fixture(self, name):
        return self.request.getfixturevalue(name)

    def producer(self, **settings):
        given = {"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 0, **settings}
        return Producer(given)

    def write(self, topic, *values, **more):
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, **more)
        assert producer.flush(60) == 0

    def member(self, topic, group):
        """A member of a group that has all partitions of a topic until the row ends or closes it."""
        member = Member(self.bootstrap, topic, group)
        self.cleanup.callback(member.close)
        return member

    def copy(self, source, name="data"):
        """A copy of a directory that a fixture has made."""
        self[name] = shutil.copytree(source, self.path / name)
        return self.path / name


def _topic(user, name):
    make(user.bootstrap, name, 1)
    user.write(name, *VALUES)


def _ordered(user, name):
    """A commit-ordered topic with two committed transactions."""
    make(user.bootstrap, name, 1, **{"stablelog.order": "commit"})
    with stablelog.connect(user.bootstrap) as client:
        for value in VALUES[:2]:
            with client.transaction() as txn:
                txn.write(name, value=value)


def _of_payments(user, name):
    make(user.bootstrap, name, 1, **{"stablelog.group": "payments"})


MAKERS = {"topic": _topic, "another": _topic, "ordered": _ordered, "of_payments": _of_payments}
# Names of what fixtures have made.
FIXTURES = {
    "stopped": lambda made: made,
    "committed": lambda made: made,
    "rolled": lambda made: made,
    "unreadable": lambda made: made.broker.bootstrap,
    "tiers": lambda made: made.broker.bootstrap,
}


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        text: a part of the message in the code, which no other message of its room has.
        error: makes the error.
        advice: takes the advice; one step for each way that the message names.
        seen: what each of these steps shows; empty for nothing in particular.
        night: whether the row runs by night only.
        group: the name of the rows that one worker runs, because they share what is costly to make.
    """

    text: str
    error: Callable[[User], Seen]
    advice: tuple[Callable[[User], Seen], ...]
    seen: str
    night: bool
    group: str


def row(text, error, *advice, seen="", night=False, group=""):
    return Row(text, error, advice, seen, night, group)


# -- steps -------------------------------------------------------------------------------------------------------------


def command(words, *, given=None, **environment):
    """A command line without `stablelog`; `$name` stands for a name of the user. The broker's address is added."""

    def step(user):
        chosen = shlex.split(user.fill(words))
        is_alone = chosen[0] in WITHOUT_BROKER or not {"--bootstrap", "--data", "--profile"}.isdisjoint(
            chosen
        )
        with pytest.MonkeyPatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, user.fill(value))
            done = run(*chosen, bootstrap=None if is_alone else user.bootstrap, given=user.fill(given))
        return Seen(done.returncode == 0, done.stdout + done.stderr)

    return step


def doing(work):
    """A function of the user, with the warnings that it logs. An error of stablelog is what is seen."""

    def step(user):
        lines = io.StringIO()
        handler = logging.StreamHandler(lines)
        logger = logging.getLogger("stablelog")
        logger.addHandler(handler)
        try:
            result, is_done = work(user), True
        except StablelogError as error:
            result, is_done = error, False
        finally:
            logger.removeHandler(handler)
        return Seen(is_done, f"{lines.getvalue()}{'' if result is None else result}")

    return step


def steps(*one_by_one):
    """Several steps of one advice; each has to succeed."""

    def step(user):
        text = ""
        for each in one_by_one:
            seen = each(user)
            if isinstance(seen, Seen):
                text += seen.text
                if not seen.is_done:
                    return Seen(False, text)
        return Seen(True, text)

    return step
