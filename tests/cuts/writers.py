"""Clients of one history: what they ask of the broker, and the writers that do so.

A writer outlives the broker: whatever that was doing when it went, the writer asks again, gives up or begins anew.
"""

import asyncio
import contextlib
import struct
from datetime import timedelta
from types import SimpleNamespace

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import (
    Context,
    add_partitions_to_txn,
    begin_joint,
    commit_joint,
    end_txn,
    init_producer_id,
    produce,
)
from stablelog.broker.network.session import Session
from stablelog.wire.extension.children import child_id
from stablelog.wire.extension.joint import BeginJointRequest, CommitJointRequest, JointChild
from stablelog.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData

GROUPS = {"": {"t": 2, "u": 1}, "other": {"v": 2}}  # their topics, with how many partitions
TXN_TIMEOUT_MS = 400
RETRIABLE = (
    ErrorCode.concurrent_transactions,
    ErrorCode.not_leader_or_follower,
    ErrorCode.coordinator_load_in_progress,
)


class GaveUpError(Exception):
    """A writer was refused, and begins anew."""


def targets_of(group):
    """The partitions that its transactions write to."""
    return [(topic, index) for topic, count in GROUPS[group].items() for index in range(count)]


def client_of(version, appending=None):
    """A client of a broker without an authorizer, whose request has this version."""
    return Context(version, 1, None, appending or asyncio.Lock(), Session())


class Calls:
    """What clients ask of a broker, answered by the broker's own handlers."""

    def __init__(self, broker, chance):
        self.broker = broker
        self._chance = chance
        self._appending = asyncio.Lock()

    async def pause(self, most_s=0.004):
        await asyncio.sleep(self._chance.random() * most_s)

    async def init(self, name):
        while True:
            answer = await init_producer_id.handle(
                self.broker,
                SimpleNamespace(
                    transactional_id=name,
                    transaction_timeout=timedelta(milliseconds=TXN_TIMEOUT_MS),
                    producer_id=-1,
                    producer_epoch=-1,
                    enable2_pc=False,
                    keep_prepared_txn=False,
                ),
                client_of(4),
            )
            if answer.error_code is ErrorCode.none:
                return answer.producer_id, answer.producer_epoch
            if answer.error_code not in RETRIABLE:
                raise GaveUpError(answer.error_code)
            await self.pause()

    async def add(self, name, producer, targets):
        topics = [SimpleNamespace(name=topic, partitions=(index,)) for topic, index in targets]
        while True:
            answer = await add_partitions_to_txn.handle(
                self.broker,
                SimpleNamespace(
                    transactions=[
                        SimpleNamespace(
                            transactional_id=name,
                            producer_id=producer[0],
                            producer_epoch=producer[1],
                            verify_only=False,
                            topics=topics,
                        )
                    ]
                ),
                client_of(4, self._appending),
            )
            codes = {
                p.partition_error_code
                for t in answer.results_by_transaction[0].topic_results
                for p in t.results_by_partition
            }
            if codes == {ErrorCode.none}:
                return
            if not codes <= set(RETRIABLE):
                raise GaveUpError(codes)
            await self.pause()

    async def produce(self, target, batch, *, name=None, version=9):
        request = ProduceRequest(
            name, -1, [TopicProduceData(target[0], [PartitionProduceData(target[1], memoryview(batch))])]
        )
        while True:
            (answer,) = await produce.handle(
                self.broker,
                request,
                client_of(version, self._appending),
            )
            code = ErrorCode(struct.unpack_from(">h", answer, 12 + len(target[0]))[0])
            if code is ErrorCode.none:
                return
            if code not in RETRIABLE:
                raise GaveUpError(code)
            await self.pause()

    async def end(self, name, producer, committed, *, version):
        while True:
            answer = await end_txn.handle(
                self.broker,
                SimpleNamespace(
                    transactional_id=name,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    committed=committed,
                ),
                client_of(version),
            )
            if answer.error_code not in RETRIABLE:
                return answer
            await self.pause()


class Writer:
    """One transactional producer. It outlives the broker."""

    def __init__(self, history, number, *, group, version):
        self.history = history
        self.chance = history.chance
        self.group = group
        self.name = f"{group}/w{number}" if group else f"w{number}"
        self.version = version  # of EndTxn: 3, or 5 for the second dialect
        self.producer = None
        self.sequences = {}
        self.txn = None

    async def run(self, calls):
        """Write until the broker goes."""
        while True:
            try:
                await self._settle_last(calls)
                self.producer = await calls.init(self.name)
                self.sequences = {}
                while True:
                    await self._transaction(calls)
                    await calls.pause(0.02)
            except GaveUpError:
                self._drop()
                await calls.pause(0.02)

    def _drop(self):
        """What was not asked to be committed never will be."""
        if self.txn is not None and not self.txn.asked:
            self.history.model.refuse(self.txn)
            self.txn = None

    async def _settle_last(self, calls):
        """The broker went before it answered: ask it again, or have the next start settle it."""
        self._drop()
        txn, self.txn = self.txn, None
        if txn is not None and self.chance.random() < 0.7:
            self._told(txn, await calls.end(self.name, self.producer, True, version=self.version))

    def _told(self, txn, answer):
        if answer.error_code is ErrorCode.none:
            txn.acked = True
            if self.version >= 5:
                self.producer = answer.producer_id, answer.producer_epoch
                self.sequences = {}
        else:
            self.history.model.refuse(txn)
            raise GaveUpError(answer.error_code)

    async def _transaction(self, calls):
        self.txn = txn = self.history.model.begin(self.group)
        chance, targets = self.chance, targets_of(self.group)
        targets = chance.sample(targets, chance.randint(1, len(targets)))
        if self.version < 5:
            await calls.add(self.name, self.producer, targets)
        batches = [target for target in targets for _ in range(chance.choice((1, 1, 2, 4)))]
        chance.shuffle(batches)
        for target in batches:
            await self._write(calls, txn, target)
            if chance.random() < 0.3:
                await calls.pause()
        fate = chance.random()
        if fate < 0.05:
            await asyncio.sleep(2 * TXN_TIMEOUT_MS / 1000)  # it is timed out
        if fate < 0.2:
            self.history.model.refuse(txn)
            self.txn = None
            answer = await calls.end(self.name, self.producer, False, version=self.version)
            if answer.error_code is not ErrorCode.none:
                raise GaveUpError(answer.error_code)
            if self.version >= 5:
                self.producer, self.sequences = (answer.producer_id, answer.producer_epoch), {}
            return
        txn.asked_after = self.history.model.counted[self.group]
        txn.asked = True
        self._told(txn, await calls.end(self.name, self.producer, True, version=self.version))
        self.txn = None

    async def _write(self, calls, txn, target):
        count = self.chance.randint(1, 3)
        sequence = self.sequences.get(target, 0)
        self.sequences[target] = sequence + count
        part = (target, self.name)
        crc, batch = self.history.batch(count, self.producer, sequence)
        self.history.model.wrote(crc, txn, part)
        version = 12 if self.version >= 5 else 9
        await calls.produce(target, batch, name=self.name, version=version)
        txn.parts.setdefault(part, []).append(crc)


class JointWriter:
    """Commits several children as one, version after version."""

    def __init__(self, history, number, *, group):
        self.history = history
        self.chance = history.chance
        self.group = group
        self.key = f"job{number}"
        self.version = 0
        self.run_number = 0
        self.txn = None

    async def run(self, calls):
        while True:
            with contextlib.suppress(GaveUpError):
                await self._version(calls)
            await calls.pause(0.03)

    async def _version(self, calls):
        self.run_number += 1
        run = f"r{self.run_number}"
        begun = await begin_joint.handle(
            calls.broker,
            BeginJointRequest(group=self.group, key=self.key, version=self.version, run=run),
            client_of(0),
        )
        assert begun.error_code is ErrorCode.none, begun
        last, self.txn = self.txn, None
        if begun.committed:
            assert last is not None, f"{self.key} {self.version} is committed, and nobody asked for it"
            last.acked = True
            self.version += 1
            return
        if last is not None:
            self.history.model.refuse(last)
        txn = self.history.model.begin(self.group)
        self.txn = txn
        children = [await self._child(calls, txn, run, at) for at in range(self.chance.randint(1, 3))]
        txn.asked_after = self.history.model.counted[self.group]
        txn.asked = True
        answer = await commit_joint.handle(
            calls.broker,
            CommitJointRequest(
                group=self.group, key=self.key, version=self.version, run=run, children=tuple(children)
            ),
            client_of(0),
        )
        if answer.error_code is ErrorCode.none:
            txn.acked = True
            self.version += 1
        else:
            self.history.model.refuse(txn)
        self.txn = None

    async def _child(self, calls, txn, run, at):
        name = child_id(self.key, self.version, run, at, 0, group=self.group)
        producer = await calls.init(name)
        targets = self.chance.sample(targets_of(self.group), self.chance.randint(1, 2))
        await calls.add(name, producer, targets)
        for target in targets:
            sequence = 0
            for _ in range(self.chance.randint(1, 2)):
                count = self.chance.randint(1, 2)
                crc, batch = self.history.batch(count, producer, sequence)
                sequence += count
                self.history.model.wrote(crc, txn, (target, name))
                await calls.produce(target, batch, name=name)
                txn.parts.setdefault((target, name), []).append(crc)
                await calls.pause(0.002)
        return JointChild(transactional_id=name, producer_id=producer[0], producer_epoch=producer[1])


class PlainWriter:
    """Writes outside transactions."""

    def __init__(self, history):
        self.history = history
        self.chance = history.chance

    async def run(self, calls):
        while True:
            target = self.chance.choice(targets_of(self.chance.choice(list(self.history.groups))))
            crc, batch = self.history.batch(self.chance.randint(1, 3), (-1, -1), -1)
            self.history.model.wrote(crc, None, (target, ""))
            await calls.produce(target, batch)
            self.history.model.acknowledged_plain[crc] = target
            await calls.pause(0.02)
