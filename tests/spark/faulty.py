"""The data source with a sink that fails or waits where a test wants it to, told by files in a directory.

fail     a task that has written everything fails, once
wait     tasks that have written everything wait until the file is gone; `written` tells that one has come so far
"""

import contextlib
import time
from pathlib import Path

from stablelog.spark.data_source import StablelogDataSource
from stablelog.spark.sink.writer import StreamWriter, stream_writer

WAIT_S = 60


class FaultySource(StablelogDataSource):
    """`format("faulty")`, with an option `faults`: the directory."""

    @classmethod
    def name(cls):
        return "faulty"

    def streamWriter(self, schema, overwrite):
        given = dict(self.options.items())
        faults = given.pop("faults")
        writer = stream_writer(given, schema)
        return FaultyWriter(writer, Path(faults))


class FaultyWriter(StreamWriter):
    def __init__(self, writer, faults):
        super().__init__(writer.options, writer.run)
        self.faults = faults

    def write(self, iterator):
        message = super().write(iterator)
        with contextlib.suppress(FileNotFoundError):
            (self.faults / "fail").unlink()
            raise RuntimeError("a task that fails after having written")
        deadline = time.monotonic() + WAIT_S
        while (self.faults / "wait").exists() and time.monotonic() < deadline:
            (self.faults / "written").touch()
            time.sleep(0.02)
        return message
