"""A driver that a test kills: a stream from the log to the log, whose every step can be somebody's last.

    python -m tests.chaos.spark_driver <directory>

`config.json` in the directory says which broker, which checkpoint and how much at a time. `plan.json` says which step of a micro-batch kills whom; the
process that comes to the step first takes the plan away, says so in `fired.json`, and kills. Steps:

    read            a task begins to read
    write           a task begins to write
    writing         a task has taken its first rows
    written         a task has everything acknowledged
    decision        all tasks have: the driver is about to ask for the decision
    asked           the driver has asked, and does not know the answer
    decided         the driver knows the answer, Spark does not
    commit log      Spark knows, and writes its own commit log, or has written it: a moment later
    commit logged   Spark has written its own commit log, just now
    source commit   Spark tells the source that the micro-batch is done
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.quick_java import QUICK_JAVA

STEPS = {
    "read": "task",
    "write": "task",
    "writing": "task",
    "written": "task",
    "decision": "driver",
    "asked": "driver",
    "decided": "driver",
    "commit log": "later",
    "commit logged": "later",
    "source commit": "driver",
}
COMMIT_JOINT = 10002
STARTED = 19  # place of a process's start time in /proc/PID/stat, behind the name

# Kills the processes of these descriptors: after so many seconds, or as soon as there is a file.
LATER = """
import os, signal, sys, time
delay_s, awaited, *descriptors = sys.argv[1:]
if not awaited:
    time.sleep(float(delay_s))
for _ in range(60_000):
    if not awaited or os.path.exists(awaited):
        break
    time.sleep(0.001)
for descriptor in descriptors:
    try:
        signal.pidfd_send_signal(int(descriptor), signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


def identity(process_id):
    """What tells a process from a later one with the same id: its id, and when it was started."""
    stat = Path(f"/proc/{process_id}/stat").read_text()
    return process_id, stat.rpartition(")")[2].split()[STARTED]


def held(identities):
    """Return descriptors of those of the processes that still exist. A process id may be another process's meanwhile."""
    found = []
    for process_id, started in identities:
        try:
            descriptor = os.pidfd_open(process_id)
        except ProcessLookupError:
            continue
        try:
            is_same = identity(process_id) == (process_id, started)
        except (FileNotFoundError, ProcessLookupError):
            is_same = False
        if is_same:
            found.append(descriptor)
        else:
            os.close(descriptor)
    return found


def kill_held(descriptors):
    """Kill the processes of descriptors that `held` returned, and close the descriptors."""
    for descriptor in descriptors:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


def step(directory, name, logged=None):
    """Come to a step of a micro-batch: perhaps the last one.

    Args:
        directory: of the test.
        name: of the step.
        logged: the micro-batch's entry in Spark's commit log, for the steps about that.
    """
    plan = directory / "plan.json"
    try:
        wanted = json.loads(plan.read_text())
    except FileNotFoundError:
        return
    if wanted["step"] != name:
        return
    if wanted["skip"] > 0:
        write(plan, {**wanted, "skip": wanted["skip"] - 1})
        return
    try:
        plan.rename(directory / "taken.json")
    except FileNotFoundError:
        return  # another one was first
    if wanted["target"] == "worker":
        processes = [identity(os.getpid())]
    else:
        processes = json.loads((directory / f"{wanted['target']}.json").read_text())
    write(directory / "fired.json", {**wanted, "logged": str(logged)})
    descriptors = held(processes)
    if STEPS[name] == "later":
        # A process of its own: it outlives the one that came to the step.
        wait = [str(wanted["delay_s"]), "" if name == "commit log" else str(logged)]
        command = [sys.executable, "-I", "-S", "-c", LATER, *wait, *map(str, descriptors)]
        subprocess.Popen(command, pass_fds=descriptors, start_new_session=True)
        return
    kill_held(descriptors)
    if wanted["target"] != "broker":
        time.sleep(wanted["delay_s"])  # a task that lives on a little after its driver


def write(path, value):
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(value))
    beside.rename(path)


def source_class():
    """The data source with its steps. Made late: this module is imported where there is no Spark, too."""
    from stablelog.client.blocking.connection import SocketConnection
    from stablelog.spark.data_source import StablelogDataSource
    from stablelog.spark.sink.writer import StreamWriter, stream_writer
    from stablelog.spark.source.reader import StablelogStreamReader

    class Reader(StablelogStreamReader):
        def read(self, partition):
            step(self.directory, "read")
            return super().read(partition)

        def commit(self, end):
            step(self.directory, "source commit")
            super().commit(end)

        def __getstate__(self):
            return super().__getstate__(), self.directory

        def __setstate__(self, state):
            super().__setstate__(state[0])
            self.directory = state[1]

    class Writer(StreamWriter):
        def __init__(self, writer, directory):
            super().__init__(writer.options, writer.run)
            self.directory = directory

        def write(self, iterator):
            step(self.directory, "write")
            message = super().write(self.rows(iterator))
            step(self.directory, "written")
            return message

        def rows(self, iterator):
            for batch in iterator:
                yield batch
                step(self.directory, "writing")

        def commit(self, messages, batchId):  # noqa: N803 (Spark's name)
            directory = self.directory
            send = SocketConnection.send

            def send_and_step(connection, api_key, *arguments, **named):
                send(connection, api_key, *arguments, **named)
                if api_key == COMMIT_JOINT:
                    step(directory, "asked")

            step(directory, "decision")
            SocketConnection.send = send_and_step
            try:
                super().commit(messages, batchId)
            finally:
                SocketConnection.send = send
            step(directory, "decided")
            logged = Path(self.options.checkpoint) / "commits" / str(batchId)
            step(directory, "commit log", logged)
            step(directory, "commit logged", logged)

    class Steps(StablelogDataSource):
        @classmethod
        def name(cls):
            return "steps"

        def __init__(self, options):
            self.directory = Path(options["steps"])
            super().__init__({name: value for name, value in options.items() if name.lower() != "steps"})

        def streamReader(self, schema):
            plain = super().streamReader(schema)
            reader = Reader(plain.options, plain.columns)
            reader.directory = self.directory
            return reader

        def streamWriter(self, schema, overwrite):
            return Writer(stream_writer(self.options, schema), self.directory)

    return Steps


def run(directory):
    """Run the query, and start it again when it fails, until a file `stop` is there."""
    config = json.loads((directory / "config.json").read_text())
    from stablelog.spark.local_session import session

    spark = session("steps", "local[2,4]", spark_driver_extraJavaOptions=QUICK_JAVA, spark_ui_enabled="false")
    spark.sparkContext.setLogLevel("OFF")
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    write(directory / "driver.json", [identity(jvm), identity(os.getpid())])
    spark.dataSource.register(source_class())
    while not (directory / "stop").exists():
        given = {"bootstrap": config["bootstrap"], "steps": str(directory)}
        rows = (
            spark.readStream.format("steps")
            .options(subscribe="in", startingOffsets="earliest", **given)
            .option("maxOffsetsPerTrigger", config["trigger"])
            .load()
            .selectExpr("key", "concat('row ', cast(value as string)) as value", "null as headers")
            .drop("headers")
        )
        query = (
            rows.writeStream.format("steps")
            .options(topic="out", commitGroup="progress", **given)
            .option("checkpointLocation", config["checkpoint"])
            .start()
        )
        try:
            while query.isActive and not (directory / "stop").exists():
                query.awaitTermination(0.5)
            query.stop()
        except Exception as error:
            message = str(error).splitlines()[:3]
            with (directory / "failures.txt").open("a") as failures:
                failures.write(json.dumps(message) + "\n")
    spark.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
