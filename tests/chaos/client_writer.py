"""A process that writes transactions with the native client, and notes what it is told of each: see client_rounds.py.

python -m tests.chaos.client_writer BOOTSTRAP threads|asyncio TOPIC NAME SEED LOG

It ends after a transaction when its standard input ends. Each line of the log is a JSON object, written at once.
"""

import asyncio
import json
import os
import random
import sys
import threading
import time
import traceback

import stablelog
from stablelog.errors import OutcomeUnknownError, UnavailableError

KEYS, RECORDS_MAX = 4, 12
TIMEOUT_S, CANCEL_S_MAX, PAUSE_S = 4, 0.08, 0.05


class AbandonedError(Exception):
    """The program gives its transaction up."""


class Notes:
    """The log, and which transactions come next."""

    def __init__(self, topic, name, seed, path):
        self.topic, self.name = topic, name
        self._chance = random.Random(f"{seed} {name}")
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._number = 0
        self._count = 0
        self.ended = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self):
        sys.stdin.buffer.read()
        self.ended.set()

    def note(self, **what):
        os.write(self._fd, json.dumps(what).encode() + b"\n")

    def begin(self):
        """The records of the next transaction, whether it is given up, and after how many seconds it is cancelled."""
        self._number += 1
        records = []
        for _ in range(self._chance.randint(1, RECORDS_MAX)):
            records.append((f"{self.name}.{self._count % KEYS}", f"{self.name}.{self._count}"))
            self._count += 1
        self.note(txn=self._number, values=[value for _, value in records])
        cancel_s = self._chance.uniform(0, CANCEL_S_MAX) if self._chance.random() < 0.2 else None
        return records, self._chance.random() < 0.1, cancel_s

    def committed(self, committed, futures):
        positions = [future.result() for future in futures]
        assert committed.first in (positions[0], None) or not positions
        self.note(txn=self._number, end="committed", positions=[one[:3] for one in positions])

    def aborted(self, futures, error):
        assert all(future.done() and future.exception() is not None for future in futures), (
            "futures of an abort"
        )
        self.note(txn=self._number, end="aborted", error=type(error).__name__)

    def doubt(self):
        self.note(txn=self._number, doubt=1)

    def cancelled(self):
        self.note(txn=self._number, cancelled=1)

    def finding(self):
        self.note(txn=self._number, finding=traceback.format_exc())


def write_with_threads(bootstrap, deadline, notes):
    with stablelog.connect(bootstrap, deadline=deadline) as client:
        while not notes.ended.is_set():
            records, is_abandoned, _ = notes.begin()
            futures, txn = [], client.transaction(timeout=TIMEOUT_S)
            try:
                with txn:
                    for key, value in records:
                        futures.append(txn.write(notes.topic, value.encode(), key=key.encode()))
                    if is_abandoned:
                        raise AbandonedError
            except OutcomeUnknownError:
                notes.doubt()
            except (UnavailableError, AbandonedError) as error:
                notes.aborted(futures, error)
                continue
            settle(txn, futures, notes)


def settle(txn, futures, notes):
    while True:
        try:
            committed = txn.commit()
        except OutcomeUnknownError:
            notes.doubt()
            time.sleep(PAUSE_S)
        except UnavailableError as error:
            return notes.aborted(futures, error)
        else:
            return notes.committed(committed, futures)


async def write_with_asyncio(bootstrap, deadline, notes):
    async with stablelog.aio.connect(bootstrap, deadline=deadline) as client:
        while not notes.ended.is_set():
            records, is_abandoned, cancel_s = notes.begin()
            futures, txn = [], client.transaction(timeout=TIMEOUT_S)
            try:
                async with asyncio.timeout(cancel_s):
                    async with txn:
                        for key, value in records:
                            futures.append(await txn.write(notes.topic, value.encode(), key=key.encode()))
                        if is_abandoned:
                            raise AbandonedError
            except TimeoutError:
                notes.cancelled()
            except OutcomeUnknownError:
                notes.doubt()
            except (UnavailableError, AbandonedError) as error:
                notes.aborted(futures, error)
                continue
            await settle_with_asyncio(txn, futures, notes)


async def settle_with_asyncio(txn, futures, notes):
    while True:
        try:
            committed = await txn.commit()
        except OutcomeUnknownError:
            notes.doubt()
            await asyncio.sleep(PAUSE_S)
        except UnavailableError as error:
            return notes.aborted(futures, error)
        else:
            return notes.committed(committed, futures)


def main(bootstrap, face, topic, name, seed, path):
    notes = Notes(topic, name, seed, path)
    deadline = random.Random(f"deadline {seed} {name}").uniform(0.2, 2)
    try:
        if face == "threads":
            write_with_threads(bootstrap, deadline, notes)
        else:
            asyncio.run(write_with_asyncio(bootstrap, deadline, notes))
    except BaseException:
        notes.finding()
        raise
    notes.note(done=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
