"""Several brokers on one hostile store, each at any point of its steps: the shipped chain in a simulated world.

Time is simulated. A request is applied at a moment between its start and its answer. Some take up to a minute, so that a
broker wakes up long after another has taken over; some are answered with a failure and were applied, are applied later or
never. Brokers take over, publish, delete old manifests, and are killed at any moment. Each publication adds a row to the
manifest. A row whose publication succeeded is acknowledged: no later manifest may lack it.
"""

import heapq
import json
import random
import uuid

from stablelog.errors import FencedError, StoreError
from stablelog.tier.chain import Chain, Create, Delete, Get, List, claim_epoch, last_manifest, same_payload
from stablelog.tier.names import RemotePartition

PARTITION = RemotePartition("t", uuid.UUID(int=7), 0)
END_S = 400.0
BROKERS = 3


class World:
    """The store, the time, and the brokers.

    Args:
        seed: of all that happens.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.objects = {}
        self.acknowledged = []
        self.fenced_count = 0
        self.is_hostile = True
        self._events = []
        self._count = 0

    def after(self, delay_s, call, *arguments):
        """Call something later."""
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, call, arguments))

    def run(self, until):
        """Let time pass until something is so, or nothing is left to do."""
        while self._events and not until():
            self.now_s, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)

    # -- the store ---------------------------------------------------------------------------------------------

    def latency_s(self):
        drawn = self.random.random()
        if self.is_hostile and drawn < 0.015:
            return self.random.uniform(1, 60)
        return 0.01 + self.random.expovariate(20)

    def ask(self, request, answer):
        """Apply a request at some moment, and call `answer` with the result or a StoreError."""
        drawn = self.random.random() if self.is_hostile else 1.0
        failure = StoreError("no clear answer")
        if drawn < 0.02:  # Never applied.
            self.after(self.latency_s(), answer, failure)
        elif drawn < 0.04:  # Applied, but the answer is lost.
            self.after(
                self.latency_s(), lambda: (self.apply(request), self.after(self.latency_s(), answer, failure))
            )
        elif drawn < 0.05:  # Answered as a failure, and applied up to 40 s later.
            self.after(self.latency_s(), answer, failure)
            self.after(self.random.uniform(0, 40), self.apply, request)
        else:
            self.after(self.latency_s(), lambda: self.after(self.latency_s(), answer, self.apply(request)))

    def apply(self, request):
        match request:
            case List(directory):
                return [
                    (key, len(content))
                    for key, content in sorted(self.objects.items())
                    if key.startswith(f"{directory}/")
                ]
            case Create(key, content):
                return self.objects.setdefault(key, content) == content
            case Get(key):
                return self.objects.get(key)
            case str(key) | Delete(key):
                self.objects.pop(key, None)
        return None


class Broker:
    """One machine. Each start is a process of a new epoch; a process that was killed leaves requests behind.

    Args:
        world: its world.
        kept: manifests that it keeps when it deletes old ones.
    """

    def __init__(self, world, kept=1):
        self.world = world
        self.kept = kept
        self.process = 0
        self.rows = None

    def start(self):
        """Begin a new process; the one before, if any, is killed."""
        self.process += 1
        self.rows = None
        self.run(self.life(), self.process)

    def life(self):
        nonce = self.world.random.randbytes(16)
        epoch = yield from self.insist(lambda: claim_epoch(nonce))
        chain = Chain(PARTITION, epoch, nonce)
        payload = yield from self.insist(lambda: chain.take_over(same_payload))
        self.rows = [] if payload is None else json.loads(payload)
        while True:
            row = self.world.random.getrandbits(60)
            rows = [*self.rows, row]
            content = json.dumps(rows).encode()
            yield from self.insist(lambda content=content: chain.publish(content))
            self.world.acknowledged.append(row)
            self.rows = rows
            if self.world.random.random() < 0.5:
                for key in (yield from self.insist(lambda: chain.removable_manifests(self.kept))):
                    yield from self.insist(lambda key=key: self.delete(key))

    @staticmethod
    def delete(key):
        yield key

    @staticmethod
    def insist(steps):
        """Repeat steps until the store answers all of them."""
        while True:
            try:
                return (yield from steps())
            except StoreError:
                continue

    def run(self, steps, process, answer=None):
        """Take the next step of a process, unless it was killed."""
        if process != self.process:
            return
        try:
            request = steps.throw(answer) if isinstance(answer, StoreError) else steps.send(answer)
        except FencedError:
            self.world.fenced_count += 1
            self.process += 1
            self.rows = None
        else:
            self.world.ask(request, lambda found: self.run(steps, process, found))


def lost_rows(seed):
    """Let the brokers live, and return the acknowledged rows that the last manifest lacks, and the world."""
    world = World(seed)
    brokers = [Broker(world, kept=world.random.choice((1, 1, 3))) for _ in range(BROKERS)]

    def disturb():
        if world.now_s < END_S:
            world.random.choice(brokers).start()
            world.after(world.random.expovariate(1 / 12), disturb)

    disturb()
    world.run(lambda: world.now_s >= END_S)
    world.is_hostile = False
    last = Broker(world)
    while last.rows is None:  # A broker that was started before may have taken a greater epoch.
        last.start()
        process = last.process
        world.run(lambda process=process: last.rows is not None or last.process != process)
    rows = last.rows
    read = next_payload(world)
    assert read is None or set(json.loads(read)) >= set(rows), "a reader sees what the last broker took over"
    return set(world.acknowledged) - set(rows), world


def next_payload(world):
    """What a reader of the chain gets."""
    steps, answer = last_manifest(PARTITION), None
    while True:
        try:
            answer = world.apply(steps.send(answer))
        except StopIteration as end:
            return end.value
