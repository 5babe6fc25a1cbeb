"""Programs of a framework read `in` and write another topic, while a producer writes and they and the broker are killed."""

import contextlib

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from peers.apache_kafka import NotAvailableError
from tests.clients.follower import Follower
from tests.clients.keyed_writer import KEYS, KeyedWriter
from tests.frameworks.program import Program
from tests.scale import randomness
from tests.waiting import until

PARTITIONS = 2
PATIENCE_S = 120


class Scene:
    """What is going on.

    Args:
        broker: it runs, and has the topics.
        programs: they have been started.
        output: the topic that they write.
        pause_s: the time between two records of `in`.

    Attributes:
        writer: of `in`.
        follower: of the output.
    """

    def __init__(self, broker, programs, output, pause_s):
        self._broker, self._programs = broker, programs
        self.writer = KeyedWriter(broker.bootstrap, pause_s)
        self.follower = Follower(broker.bootstrap, output, PARTITIONS)

    def kill(self, count):
        """Kill the broker and a program, a program, or the broker, in turn; each time, wait until more comes out."""
        chance = randomness(count)
        self._goes_on()
        for kill in range(count):
            victims = (
                [self._broker, chance.choice(self._programs)],
                [chance.choice(self._programs)],
                [self._broker],
            )[kill % 3]
            for one in victims:
                one.kill()
            for one in victims:
                one.start()
            self._goes_on()

    def _goes_on(self):
        before = self.follower.count
        self._wait(lambda: self.follower.count > before + 2 * KEYS, lambda: "nothing comes out")

    def finish(self, has_all):
        """Write no more, and wait until all has come out."""
        total = self.writer.stop()
        self._wait(has_all, lambda: f"{self.follower.count} records came out, for {total}")
        return total

    def _wait(self, condition, what):
        until(
            lambda: all(program.keep_up() for program in self._programs) and condition(),
            lambda: "\n".join([what(), *(program.log_tail() for program in self._programs)]),
            patience_s=PATIENCE_S,
        )

    @property
    def ends(self):
        """How often each program ended by itself, and was started again."""
        return [program.ends for program in self._programs]


@contextlib.contextmanager
def scene(folder, framework, program, arguments, output, pause_s=0.01, program_count=2):
    """Programs on a broker.

    Args:
        folder: for all files.
        framework: of the programs.
        program: its name.
        arguments: of the command line of a program: called with the broker and the number of the program.
        output: the topic that they write.
        pause_s: the time between two records of `in`.
        program_count: how many programs run.
    """
    with stablelog.serve(folder / "data", group_initial_rebalance_delay_ms=0) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("in", output)]).values():
            made.result(30)
        programs, running = [], None
        try:
            for number in range(program_count):
                log = folder / f"{program}-{number}.log"
                programs.append(Program(framework, program, arguments(broker, number), log))
            running = Scene(broker, programs, output, pause_s)
            yield running
        except NotAvailableError as missing:
            pytest.skip(str(missing))
        finally:
            for one in programs:
                one.kill()
            if running is not None:
                running.writer.stop()
                running.follower.stop()
