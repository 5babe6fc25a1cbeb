"""The start of a broker's process: what it imports, and what the garbage collector does meanwhile."""

import json
import signal
import subprocess
import sys

import pytest

from stablelog.embedded import PROCESS

# The process that `stablelog.serve()` starts, up to the first record: a server that listens to nobody is asked to
# decode a Produce request and to encode its answer.
FIRST_RECORD = """
import gc, json
from pathlib import Path
from stablelog.broker import server
from stablelog.cli.serve import run_serve
from stablelog.wire.api import Api
from stablelog.wire.messages import decode_request
from stablelog.wire.produce import encode_produce_response

def run_server(config, directory, *, ready):
    found.update(enabled=gc.isenabled(), frozen=gc.get_freeze_count())

found = {}
server.run_server = run_server
run_serve(Path("data"), "127.0.0.1", 0, None, [])
for version in (3, 12):
    decode_request(Api(0, version, version), version, bytes.fromhex(%r[version]))
    encode_produce_response(version, 1, [])
found["modules"] = sorted(sys.modules)
print(json.dumps(found))
"""
# Produce v3 and v12 of no topic: header, transactional id, acks, timeout, topics; v12 with tagged fields.
FRAMES = {
    3: "0000 0003 00000001 ffff ffff ffff 00000000 00000000",
    12: "0000 000c 00000001 ffff 00 00 ffff 00000000 01 00",
}


def first_record():
    """What a new process has at the first record: its modules, and the state of the garbage collector."""
    before, run, _ = PROCESS.partition("from stablelog.cli.serve")
    assert run, "PROCESS imports the broker in another way"
    done = subprocess.run(
        [sys.executable, "-c", before + FIRST_RECORD % FRAMES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.extended
def test_the_first_record_imports_no_message_that_it_does_not_need():
    modules = first_record()["modules"]
    messages = [
        name
        for name in modules
        if name.startswith(("kio.schema.produce", "kio.schema.fetch", "stablelog.wire.extension."))
    ]
    assert messages == ["stablelog.wire.extension.children", "stablelog.wire.extension.transaction_groups"]
    rooms = {name.split(".")[1] for name in modules if name.startswith("stablelog.")}
    assert rooms.isdisjoint({"client", "ops", "spark", "testing"})
    assert not {"confluent_kafka", "pyarrow", "pyspark", "rich", "typer"} & set(modules)


@pytest.mark.extended
def test_imports_are_frozen_and_the_collector_works_when_the_server_runs():
    found = first_record()
    assert found["enabled"]
    assert found["frozen"] > 10_000


INTERRUPTED = """
import os, signal
from pathlib import Path
from stablelog.broker import server
from stablelog.cli.serve import run_serve

def run_server(*arguments, **more):
    os.kill(os.getpid(), signal.SIGINT)

server.run_server = run_server
run_serve(Path("unused"), None, 0, None, [])
"""


@pytest.mark.extended
def test_an_interrupt_before_the_event_loop_runs_ends_the_process_without_a_traceback():
    command = [
        sys.executable,
        "-c",
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)" + INTERRUPTED,
    ]
    ended = subprocess.run(command, check=False, capture_output=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")
