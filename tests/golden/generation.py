"""Data directories that the code of one commit wrote, and what its broker told clients of them.

`tests/golden/generations/<number>` is one: `stopped` is a directory whose broker was stopped in order, `killed` one whose broker
was killed with -9 while it was written to, `spark` a directory beside the checkpoints of two queries that were stopped in
mid-stream. A directory is kept as `<name>.tar.xz`, what clients were told as `<name>.json`. A change of a format adds one:

    python -m tests.golden.generation NUMBER
"""

import argparse
import contextlib
import functools
import io
import json
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import stablelog
from stablelog import embedded
from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records

GENERATIONS = Path(__file__).parent / "generations"
NAMES = ("stopped", "killed")
SPARK = "spark"
MANIFEST = "manifest.json"
LEFT_OUT = (".broker.log", ".lock", "disk-reserve")
SETTINGS = {
    "log_cleaner_backoff_ms": 50,
    "transaction_max_timeout_ms": 2**31 - 1,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 100,  # how often logs are trimmed, too
    "group_initial_rebalance_delay_ms": 0,
    "log_segment_delete_delay_ms": 0,
    "log_retention_check_interval_ms": 200,
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}
NEVER = {"log_cleaner_backoff_ms": 2**62}
VERSION_IN_JSON = re.compile(rb'"version": ?(\d+)')
VERSION_IN_LINE = re.compile(rb"(?:version[:=] ?)?(\d+)")
# A coordinator trims its log at 16 MiB: directories that are committed have to be small.
TRIMMED = "import stablelog.broker.durability.journal as journal; journal.CHECKPOINT_SIZE_MIN = 8 << 10\n"


@dataclass(frozen=True)
class Generation:
    """One of them.

    Attributes:
        path: its directory.
    """

    path: Path

    @property
    def number(self):
        return int(self.path.name)

    @property
    def manifest(self):
        return json.loads((self.path / MANIFEST).read_text())

    @property
    def versions(self):
        """The versions of each kind of file and record in its directories: {kind: versions}."""
        found = defaultdict(set)
        for directory in self.manifest["directories"].values():
            for kind, versions in directory["versions"].items():
                found[kind] |= set(versions)
        return found

    def expected(self, name):
        """What clients were told of a directory."""
        return json.loads((self.path / f"{name}.json").read_text())

    def unpack(self, name, target):
        """A copy of a directory."""
        with tarfile.open(self.path / f"{name}.tar.xz") as tar:
            tar.extractall(target, filter="data")
        return target / name

    def pack(self, name, source):
        """Keep a directory. The same files give the same bytes."""
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path in [source, *sorted(source.rglob("*"))]:
                if path.name in LEFT_OUT:
                    continue
                about = tarfile.TarInfo(str(Path(name) / path.relative_to(source)))
                mode = 0o600 if path.name in PRIVATE else 0o644
                about.mode, about.type = (
                    (0o755, tarfile.DIRTYPE) if path.is_dir() else (mode, tarfile.REGTYPE)
                )
                held = b"" if path.is_dir() else path.read_bytes()
                about.size = len(held)
                tar.addfile(about, io.BytesIO(held))
        packed = lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME)
        (self.path / f"{name}.tar.xz").write_bytes(packed)

    def save(self, name, content):
        """Keep what clients were told, a line for each record."""
        (self.path / name).write_text(to_json(content) + "\n")


def to_json(content, depth=0):
    """JSON with a line for each row, so that a difference is seen in its line."""
    pad = " " * (depth + 1)
    if isinstance(content, dict) and content:
        rows = [f"{pad}{json.dumps(key)}: {to_json(held, depth + 1)}" for key, held in content.items()]
        return "{\n" + ",\n".join(rows) + "\n" + pad[1:] + "}"
    if isinstance(content, list) and content and isinstance(content[0], list | dict):
        rows = [
            pad
            + (
                json.dumps(held, separators=(",", ":"))
                if isinstance(held, list)
                else to_json(held, depth + 1)
            )
            for held in content
        ]
        return "[\n" + ",\n".join(rows) + "\n" + pad[1:] + "]"
    return json.dumps(content, separators=(",", ":"))


def generations():
    """All that are kept, the oldest first."""
    found = [path for path in GENERATIONS.iterdir() if path.name.isdigit()]
    return [Generation(path) for path in sorted(found, key=lambda path: int(path.name))]


# -- writing one ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def trimming():
    """Brokers that are started in the block trim their own logs early."""
    before = embedded.PROCESS
    embedded.PROCESS = TRIMMED + before
    yield
    embedded.PROCESS = before


def now_ms():
    """The time, as brokers know it."""
    return time.time_ns() // 1_000_000


def write_directory(name, data):
    """Write a directory; returns it, and what clients were told of it."""
    from tests.golden.generation_load import Load

    with trimming():
        with stablelog.serve(data, **SETTINGS) as broker:
            load = Load(broker.bootstrap, data)
            load.first_half()
            (broker.stop if name == "stopped" else broker.kill)()
        with stablelog.serve(data, port=broker.port, **SETTINGS | NEVER) as broker:
            load.second_half()
            if name == "stopped":
                broker.stop()
            else:
                acknowledged = kill_under_load(broker, data)
    written_ms = now_ms()
    told = told_of(data, written_ms)
    if name == "killed":
        told["acknowledged"] = sorted(acknowledged)
    return data, {"written_ms": written_ms, **told}


def told_of(data, written_ms):
    """What the broker tells clients of a copy: a later one that is started on another copy has to tell the same."""
    from tests.golden.generation_look import look

    copy = shutil.copytree(data, data.with_name("copy"))
    with stablelog.serve(copy, **SETTINGS | NEVER) as broker:
        told = look(broker.bootstrap, written_ms)
        broker.stop()
        broker.start()
        again = look(broker.bootstrap, written_ms)
    assert told == again, "it tells something else after it was stopped"
    shutil.rmtree(copy)
    return told


def kill_under_load(broker, data):
    """Kill it while transactions are decided whose markers are not all written. Returns what was acknowledged."""
    from tests.golden.generation_load import BusyWriters
    from tests.waiting import until

    acknowledged = []
    for attempt in range(20):
        writers = BusyWriters(broker.bootstrap, 100 * attempt)
        until(lambda writers=writers: len(writers.acknowledged) >= 5, "nothing is committed")
        log = max((data / "__transaction_state-0").glob("*.log"))
        size = log.stat().st_size
        while log.stat().st_size == size:
            pass  # a decision is written, and waits for its fsync; then come the markers
        broker.kill()
        writers.join()
        acknowledged += writers.acknowledged
        if decided_without_markers(data):
            return acknowledged
        broker.start()
    raise AssertionError("no kill has met a decision without its markers")


def decided_without_markers(data):
    """The transactional ids of transactions that are decided, and lack a marker in a partition that they have written to."""
    from stablelog.coordinators.transactions.records import TransactionKey, decode_transaction, read_key

    latest = {}
    for _, _, record in records_of(data / "__transaction_state-0"):
        key = read_key(record.key)
        if isinstance(key, TransactionKey) and record.value is not None:
            latest[key.transactional_id] = decode_transaction(record.value)
    found = []
    for who, txn in latest.items():
        if txn.state.is_decided:
            for topic, index in txn.partitions:
                is_open = False
                for header in batch_headers(data / f"{topic}-{index}"):
                    if header.producer_id == txn.producer_id:
                        is_open = not header.is_control
                if is_open:
                    found.append(who)
    return found


def batch_headers(directory):
    """The headers of all batches of a partition."""
    for path in sorted(directory.glob("*.log")):
        for _, header in headers_in(path.read_bytes()):
            yield header


def records_of(directory):
    """The records of a partition outside control batches: (header, path of the segment, record)."""
    for path in sorted(directory.glob("*.log")):
        content = path.read_bytes()
        for at, header in headers_in(content):
            if not header.is_control and at + header.size <= len(content):
                for record in decode_records(content, at):
                    yield header, path, record


# Kinds of files that have no version: of indexes, the summary beside them has one.
WITHOUT_VERSION = (
    ".index",
    ".timeindex",
    ".commitindex",
    ".commitextents",
    ".broker.log",
    ".lock",
    "broker-time",  # a hint: a file of another version is not used
    "disk-reserve",
    "log-start-sequence",  # a file of another version is not used
)
BY_NUMBER = (".summary", ".snapshot", ".producers", ".commitsummary", ".txnindex")  # their first two bytes
BY_JSON = ("cluster.json", "broker.json", "acls.json", "users.json", "quotas.json", ".kafka_cleanshutdown")
PRIVATE = ("users.json",)
BY_LINE = ("log-start-offset", "view-start-offset", "partition.metadata", "meta.properties")


def versions_in(data):
    """The version of each kind of file and of record in a data directory: {kind: versions}."""
    found = defaultdict(set)
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        if path.suffix in (".deleted", ".tmp"):
            continue  # a start removes it
        content = path.read_bytes()
        kind = path.suffix if path.stem.isdigit() else path.name
        if kind in BY_NUMBER:
            found[kind] |= {int.from_bytes(content[:2], "big")} if content else set()
        elif kind in BY_JSON:
            found[kind].add(int(VERSION_IN_JSON.search(content)[1]))
        elif kind in BY_LINE or kind.endswith("-checkpoint"):
            found[kind].add(int(VERSION_IN_LINE.match(content)[1]))
        elif kind == ".log":
            found["record batch"] |= {header.magic for _, header in headers_in(content)}
        else:
            assert kind in WITHOUT_VERSION, f"{path}: what says its version?"
    for directory in sorted(data.glob("__*")):
        log = "commit log" if directory.name.startswith("__transaction_state") else "offsets log"
        for _, _, record in records_of(directory):
            kind = int.from_bytes(record.key[:2], "big")
            if record.value:
                found[f"{log}, key {kind}"].add(int.from_bytes(record.value[:2], "big"))
    return {kind: sorted(versions) for kind, versions in sorted(found.items())}


def commit_of_the_code():
    """The last commit that has changed the code that runs; with a + behind it if that was changed since."""

    def git(*arguments):
        source = Path(stablelog.__file__).parent
        asked = ["git", *arguments, "--", "."]
        return subprocess.run(asked, cwd=source, capture_output=True, text=True, check=True).stdout.strip()

    return git("log", "-1", "--format=%h", "--abbrev=7") + ("+" if git("status", "--porcelain") else "")


def write_generation(number, names):
    """Write these directories of a generation."""
    generation = Generation(GENERATIONS / str(number))
    generation.path.mkdir(parents=True, exist_ok=True)
    known = generation.manifest if (generation.path / MANIFEST).exists() else {"directories": {}}
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            if name == SPARK:
                from tests.golden.generation_spark import write_spark as write
            else:
                write = functools.partial(write_directory, name)
            data, told = write(Path(scratch) / name)
            generation.pack(name, data)
            generation.save(f"{name}.json", told)
            known["directories"][name] = {
                "commit": commit_of_the_code(),
                "versions": versions_in(data / "data" if name == SPARK else data),
            }
    generation.save(MANIFEST, {"generation": number, **known})
    size = sum(path.stat().st_size for path in generation.path.iterdir())
    sys.stdout.write(f"{generation.path}: {size} bytes\n")


def main():
    """Write a generation, or some of its directories anew."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("number", type=int)
    parser.add_argument("names", nargs="*", default=[*NAMES, SPARK])
    given = parser.parse_args()
    write_generation(given.number, given.names)


if __name__ == "__main__":
    main()
