"""What `stablelog.connect` imports: a program that starts pays for what it uses, and for nothing else."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, stablelog
stablelog.connect
print(*(name for name in sys.modules if name.startswith({what})))
"""


def imported(*what):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(what=what)], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_no_message_is_imported_before_it_is_sent():
    messages = {name.split(".")[2] for name in imported("kio.schema.")}
    assert messages == {"errors", "request_header", "response_header"}


@pytest.mark.extended
def test_what_writes_and_what_reads_is_imported_when_a_program_begins_to():
    """The library of the CRC takes as long as a tenth of the client."""
    assert imported("crc32c", "stablelog.batch") == {"stablelog.batch", "stablelog.batch.codec"}
    found = imported("stablelog.client")
    assert "stablelog.client.blocking.client" in found
    for module in ("transaction", "reader", "group_reader", "admin", "core.writing", "core.login"):
        assert f"stablelog.client.{module}" not in found
