"""How is Apache Kafka itself had and run, for tests and benchmarks that put it beside stablelog?

Its jars come from Maven Central, once, into `target/kafka`. Where Java, Maven or the jars cannot be had,
`NotAvailableError` says which, and whoever asked skips with that word.

    with apache_kafka.serve() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
"""

import base64
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

VERSION = "4.2.1"
CONNECT_VERSION = "4.2.0"  # the newest 4.2 of which Maven Central has all parts of MirrorMaker 2
ROCKSDB_VERSION = "10.1.3"
JAVA_VERSION_MIN = 17
FETCH_TIMEOUT_S = 300
# Bounds for what hangs: a busy machine takes a minute for what takes seconds.
START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 120
FOLDER = Path(__file__).parents[1] / "target" / "kafka"

# As Kafka's own kafka-server-start.sh and kafka-run-class.sh give them.
JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
# One node in all roles. Its own topics have one partition and one copy: less to start with than Kafka's defaults.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# With these Kafka syncs before it acknowledges, as stablelog does by default.
SYNC_BEFORE_ACKNOWLEDGEMENT = {"log.flush.interval.messages": "1"}


class NotAvailableError(Exception):
    """Apache Kafka cannot be run here; the message says what is missing."""


class Artifact(NamedTuple):
    """A jar at Maven Central. Kafka's jars of test classes have the classifier `test`."""

    group: str
    name: str
    version: str
    classifier: str = ""


# -- Java and the jars -----------------------------------------------------------------------------------------


def java() -> str:
    """The path of a Java that runs this Kafka: JAVA_HOME's, or the one on the path.

    Raises:
        NotAvailableError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise NotAvailableError("no Java on the path")
    told = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', told)
    if version is None or int(version[1]) < JAVA_VERSION_MIN:
        raise NotAvailableError(f"{found} is older than Java {JAVA_VERSION_MIN}")
    return found


def jars(folder: Path = FOLDER, version: str = VERSION) -> Path:
    """The folder with Kafka's jars; fetched with Maven if they are not there yet, which takes about a minute.

    Several processes may ask at once: one fetches, the others wait for it.

    Args:
        folder: where the folder lies.
        version: of Kafka.

    Raises:
        NotAvailableError: there is no Maven, or it could not fetch them.
    """
    # The broker and its commands, the client, and the logger that says on standard error why a broker did not start.
    artifacts = (
        Artifact("org.apache.kafka", "kafka_2.13", version),
        Artifact("org.apache.kafka", "kafka-tools", version),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    )
    return fetched(folder, f"jars-{version}", f"Apache Kafka {version}", artifacts)


def streams_jars(folder: Path = FOLDER) -> Path:
    """The folder with the jar of Kafka Streams, without RocksDB: its stores in memory need no more.

    Raises:
        NotAvailableError: there is no Maven, or it could not fetch it.
    """
    artifacts = (Artifact("org.apache.kafka", "kafka-streams", VERSION),)
    return fetched(
        folder, f"streams-{VERSION}", f"Kafka Streams {VERSION}", artifacts, with_dependencies=False
    )


def rocksdb_jars(folder: Path = FOLDER) -> Path:
    """The folder with the jar of RocksDB that belongs to Kafka Streams of this version; 70 MB.

    Raises:
        NotAvailableError: there is no Maven, or it could not fetch it.
    """
    artifacts = (Artifact("org.rocksdb", "rocksdbjni", ROCKSDB_VERSION),)
    return fetched(folder, f"rocksdb-{ROCKSDB_VERSION}", f"RocksDB {ROCKSDB_VERSION}", artifacts)


def connect_jars(folder: Path = FOLDER) -> Path:
    """The folder with Kafka Connect and MirrorMaker 2, and with the client of their version.

    Raises:
        NotAvailableError: there is no Maven, or it could not fetch them.
    """
    artifacts = (
        Artifact("org.apache.kafka", "connect-runtime", CONNECT_VERSION),
        Artifact("org.apache.kafka", "connect-mirror", CONNECT_VERSION),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    )
    return fetched(folder, f"connect-{CONNECT_VERSION}", f"Kafka Connect {CONNECT_VERSION}", artifacts)


def fetched(
    folder: Path,
    name: str,
    what: str,
    artifacts: Iterable[Artifact],
    *,
    with_dependencies: bool = True,
) -> Path:
    """The folder of this name with the jars of some artifacts; fetched with Maven if it is not there yet.

    Args:
        folder: where it lies, and what Maven needs for it.
        name: of the folder; it should say the version.
        what: what they are, for people.
        artifacts: the jars.
        with_dependencies: whether what they depend on is fetched too.

    Raises:
        NotAvailableError: there is no Maven, or it could not fetch them.
    """
    ready = folder / name
    if ready.is_dir():
        return ready
    maven = shutil.which("mvn")
    if maven is None:
        raise NotAvailableError("no Maven (mvn) on the path")
    with locked(folder):
        if not ready.is_dir():
            sys.stderr.write(f"fetching {what} from Maven Central\n")
            (folder / "pom.xml").write_text(_pom(artifacts, with_dependencies=with_dependencies))
            _fetch(maven, folder, ready)
    return ready


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from putting things into the folder while the block runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(maven: str, folder: Path, ready: Path) -> None:
    arriving = folder / "arriving"
    shutil.rmtree(arriving, ignore_errors=True)
    command = [maven, "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={arriving}")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False, cwd=folder
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"Maven did not fetch the jars within {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NotAvailableError(f"Maven could not fetch the jars: {lines[0] if lines else 'it says nothing'}")
    arriving.rename(ready)


def _pom(artifacts: Iterable[Artifact], *, with_dependencies: bool) -> str:
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{one.group}</groupId><artifactId>{one.name}</artifactId>"
        f"<version>{escape(one.version)}</version>"
        f"{f'<classifier>{one.classifier}</classifier>' if one.classifier else ''}"
        f"{'' if with_dependencies else alone}</dependency>"
        for one in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>stablelog</groupId><artifactId>peers</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


def compiled(source: Path, *folders: Path) -> Path:
    """Compile a Java source, unless an earlier call did, and return the folder with its classes.

    Args:
        source: the Java file. Its class is compiled again after a change of the file.
        folders: with the jars that the source needs. Their names contain the versions.

    Raises:
        NotAvailableError: there is no Java or no compiler.
    """
    compiler = Path(java()).with_name("javac")
    if not compiler.exists():
        raise NotAvailableError(f"no Java compiler at {compiler}: a JDK has one")
    class_path = ":".join(f"{folder}/*" for folder in folders)
    names = "".join(folder.name for folder in folders)
    digest = hashlib.sha256(source.read_bytes() + names.encode()).hexdigest()[:16]
    ready = FOLDER / f"{source.stem.lower()}-{digest}"
    with locked(FOLDER):
        if not ready.is_dir():
            arriving = FOLDER / "compiling"
            shutil.rmtree(arriving, ignore_errors=True)
            command = [str(compiler), "-nowarn", "-cp", class_path, "-d", str(arriving), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            arriving.rename(ready)
    return ready


def command_of(
    main_class: str, *arguments: str, jvm_options: tuple[str, ...] = (), version: str = VERSION
) -> list[str]:
    """The command that runs one of Kafka's classes, such as `kafka.Kafka` or a tool.

    Raises:
        NotAvailableError: as `java` and `jars`.
    """
    return [java(), *jvm_options, QUIET, "-cp", f"{jars(version=version)}/*", main_class, *arguments]


def run_tool(
    main_class: str,
    *arguments: str,
    timeout_s: float = START_TIMEOUT_S,
    jvm_options: tuple[str, ...] = (),
    version: str = VERSION,
) -> str:
    """Run one of Kafka's commands, and return what it prints.

    Raises:
        NotAvailableError: as `java` and `jars`.
        subprocess.CalledProcessError: the command failed; `stderr` and `stdout` say why.
    """
    done = subprocess.run(
        command_of(main_class, *arguments, jvm_options=jvm_options, version=version),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=True,
    )
    return done.stdout


# -- a broker --------------------------------------------------------------------------------------------------


def reserve_ports(owner: object, count: int) -> list[int]:
    """Ports that nobody else gets while the owner lives: they are bound, and not listened on.

    Java binds with SO_REUSEADDR, and gets them. Where this is not Linux they are free at this moment, no more.
    """
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        weakref.finalize(owner, one.close)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    if sys.platform != "linux":
        for one in sockets:
            one.close()
    return ports


class KafkaBroker:
    """An Apache Kafka broker in a process of its own: KRaft, one node, on loopback.

    Args:
        data: its data directory. It is formatted if it is not yet.
        settings: any of Kafka's, over SETTINGS.
        jvm_options: how its Java runs.
        version: of Kafka.
        more_listeners: addresses of further listeners, by their names.

    Attributes:
        data: its data directory.
        port: where it listens; the same after `start` again.
        version: of Kafka.
    """

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, str],
        jvm_options: tuple[str, ...] = JVM_OPTIONS,
        *,
        version: str = VERSION,
        more_listeners: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.version = version
        self._jvm_options = jvm_options
        self.port, controller_port = reserve_ports(self, 2)
        self._process: subprocess.Popen[bytes] | None = None
        self._config_path = data.parent / f"{data.name}.properties"
        self._log_path = data.parent / f"{data.name}.log"
        more = "".join(f",{name}://{address}" for name, address in (more_listeners or {}).items())
        plain = f"PLAINTEXT://127.0.0.1:{self.port}{more}"
        listeners = f"{plain},CONTROLLER://127.0.0.1:{controller_port}"
        properties = SETTINGS | {
            "listeners": listeners,
            "advertised.listeners": plain,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "log.dirs": str(data),
        }
        lines = [f"{name}={value}\n" for name, value in (properties | dict(settings)).items()]
        self._config_path.write_text("".join(lines))

    @property
    def bootstrap(self) -> str:
        """The address, as clients want it."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that is running."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def format(self) -> None:
        """Make the data directory one that Kafka starts on; fine if it is one."""
        if (self.data / "meta.properties").exists():
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        run_tool(
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",
            "-c",
            str(self._config_path),
            jvm_options=self._jvm_options,
            version=self.version,
        )

    def start(self) -> None:
        """Start the process, and wait until it answers.

        Raises:
            NotAvailableError: it ended instead, or does not answer; says its last words.
        """
        assert self._process is None, "the broker is running"
        self.format()
        command = command_of(
            "kafka.Kafka", str(self._config_path), jvm_options=self._jvm_options, version=self.version
        )
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise NotAvailableError(f"Apache Kafka did not start:\n{self.log_tail()}")
            time.sleep(0.02)

    def log_tail(self, line_count: int = 20) -> str:
        """The last lines that the broker has logged."""
        lines = self._log_path.read_text(errors="replace").splitlines() if self._log_path.exists() else []
        return "\n".join(lines[-line_count:])

    def stop(self) -> None:
        """Stop the broker in order; fine if it has stopped."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process with -9, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def serve(data: Path | None = None, **settings: str) -> Iterator[KafkaBroker]:
    """Run a broker while the block runs.

    Args:
        data: its data directory, which stays; a temporary one that goes if none is given.
        settings: any of Kafka's, with `_` for each `.` of its name.

    Raises:
        NotAvailableError: there is no Java, no Maven, no jars, or the broker did not start.
    """
    with contextlib.ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-"))) / "data"
        broker = KafkaBroker(data, {name.replace("_", "."): value for name, value in settings.items()})
        stack.callback(broker.stop)
        broker.start()
        yield broker


API_VERSIONS_REQUEST = struct.pack(
    ">ihhih", 10, 18, 0, 1, -1
)  # size, api key, version, correlation id, no client id


def _answers(port: int) -> bool:
    """Whether a Kafka broker answers an ApiVersions request there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(API_VERSIONS_REQUEST)
            return len(connection.recv(4)) > 0
    except OSError:
        return False
