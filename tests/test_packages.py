"""The wheel in a fresh environment: what the core runs alone, and what each extra adds to it."""

import re
import shutil
import socket
import subprocess
import sys

import pytest

from tests.commands import ROOT
from tests.fresh_copy import bash
from tests.test_readme import COMMANDS, README

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("packages"), pytest.mark.timeout(600)]

CORE = {"stablelog", "kio", "crc32c", "cramjam", "uvloop", "prometheus-client"}
CORE_BYTES_MAX = 35 << 20
CLIENT = """
import stablelog
with stablelog.serve() as broker, stablelog.connect(broker.bootstrap) as client:
    client.admin.topics.create("t", configs={"stablelog.order": "commit"})
    with client.transaction() as txn:
        txn.write("t", b"one")
    with client.read(["t"]) as reader:
        print(next(iter(reader)).records[0].value)
"""
PLUGIN = """
def test_a_broker_is_there(stablelog_broker):
    assert stablelog_broker.bootstrap
"""


class Environment:
    """A virtual environment with the wheel.

    Args:
        directory: where it is made.
        wheel: the wheel.
    """

    def __init__(self, directory, wheel):
        self.wheel = wheel
        self.bin = directory / "bin"
        self._directory = directory
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        self.install("")

    def install(self, *requirements):
        """Install packages. "" and a text in brackets stand for the wheel with these extras."""
        named = [f"{self.wheel}{one}" if one[:1] in ("", "[") else one for one in requirements]
        done = self.run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *named)
        assert done.returncode == 0, done.stderr

    def run(self, *words):
        """Run Python with these words."""
        return self._run(self.bin / "python", *words)

    def stablelog(self, *words):
        """Run the command `stablelog`."""
        return self._run(self.bin / "stablelog", *words)

    def _run(self, *words):
        return subprocess.run(
            [str(word) for word in words],
            cwd=self._directory,
            env={"PATH": str(self.bin), "HOME": str(self._directory)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def installed(self):
        """The names of the packages that were installed."""
        program = "import importlib.metadata as m; print(*(one.name for one in m.distributions()))"
        return {re.sub(r"[_.]", "-", name.lower()) for name in self.run("-c", program).stdout.split()}

    def size(self):
        """The bytes of the files of the packages, without compiled modules and pip."""
        (packages,) = self._directory.glob("lib/python3*/site-packages")
        paths = (path for path in packages.rglob("*") if path.is_file() and not path.is_symlink())
        return sum(
            path.stat().st_size
            for path in paths
            if path.suffix != ".pyc" and path.relative_to(packages).parts[0].partition("-")[0] not in OTHERS
        )


OTHERS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")


@pytest.fixture(scope="module")
def wheel(module_path):
    """The wheel of this project, built as a release is."""
    uv = shutil.which("uv")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "-w",
        str(module_path),
        str(ROOT),
    ]
    if uv is not None:
        command = [uv, "build", "--quiet", "--wheel", "-o", str(module_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr.strip().splitlines()[-1:]}")
    (found,) = module_path.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def core(module_path, wheel):
    return Environment(module_path / "core", wheel)


@pytest.fixture(scope="module")
def everything(module_path, wheel):
    """An environment to which the tests add extras, in their order."""
    return Environment(module_path / "everything", wheel)


def test_the_core_is_small(core):
    extras = {"typer", "rich", "click", "pydantic", "obstore", "confluent-kafka", "pyarrow", "joserfc", "h11"}
    assert core.installed() >= CORE
    assert not core.installed() & extras
    assert core.size() <= CORE_BYTES_MAX


def test_the_core_serves_and_has_clients(core):
    done = core.run("-c", CLIENT)
    assert (done.returncode, done.stdout) == (0, "b'one'\n"), done.stderr


@pytest.mark.parametrize("words", [("--version",), ("-m", "stablelog", "--version")], ids=" ".join)
def test_the_core_says_its_version(core, words):
    done = core.run(*words) if words[0] == "-m" else core.stablelog(*words)
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "stablelog", "")


def test_the_core_has_the_command_serve(core):
    done = core.stablelog("serve", "--data", "data", "--set", "num.partitions=many")
    assert done.returncode == 2
    assert "num.partitions" in done.stderr
    assert core.stablelog("serve", "--help").returncode == 0


def test_the_core_has_the_command_health(core):
    done = core.stablelog("health", "--ready", "--address", "127.0.0.1:1")
    assert (done.returncode, "no broker answers at 127.0.0.1:1" in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize("words", [("topics", "list"), ("--help",), ()], ids=" ".join)
def test_other_commands_name_the_extra_that_they_need(core, words):
    done = core.stablelog(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("stablelog: ")
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'stablelog[cli]'" in done.stderr


def test_an_object_store_names_the_extra_that_it_needs(core):
    done = core.run(
        "-c", "from stablelog.env.objects.opening import open_store; open_store('s3://bucket/log')"
    )
    assert "pip install 'stablelog[store]'" in done.stderr.splitlines()[-1]
    settings = (
        "--set",
        "stablelog.remote.storage.enable=true",
        "--set",
        "stablelog.remote.url=s3://b/l",
    )
    done = core.stablelog("serve", "--data", "tiered", "--port", "0", *settings)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "pip install 'stablelog[store]'" in done.stderr


def test_the_pytest_plugin_needs_no_extra(core):
    core.install("pytest")
    (core.bin.parent / "test_it.py").write_text(PLUGIN)
    done = core.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_extra_cli_brings_the_commands(everything):
    everything.install("[cli]")
    done = everything.stablelog("--help")
    assert (done.returncode, "topics" in done.stdout) == (0, True)
    done = everything.stablelog("topics", "list", "--bootstrap", "127.0.0.1:1", "--timeout", "0.1")
    assert (done.returncode, "no broker responds" in done.stderr) == (3, True), done.stderr


def test_the_first_lines_of_readme_run_from_the_wheel(everything, tmp_path):
    everything.install("[cli]")
    assert "`pip install 'stablelog[cli]'` will replace `make setup`" in README
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    lines = [line.strip() for block in COMMANDS for line in block.splitlines()]
    serve = lines.index("stablelog serve --data log")
    lines[serve] += f" --port {port} &"
    typed = [line for line in lines if line.startswith(("stablelog", "printf"))]
    printed = bash("\n".join([f". {everything.bin}/activate", *typed]), tmp_path, port, 300)
    assert printed.endswith("hello\nworld\n")


def test_the_extra_store_brings_object_stores(everything):
    everything.install("[store]")
    program = """
from stablelog.env.objects.opening import open_store
store = open_store("memory:///")
store.create("key", b"value")
print(store.get("key"))
"""
    assert everything.run("-c", program).stdout == "b'value'\n"


def test_the_extra_parquet_reads_parquet(everything, stablelog_broker):
    bootstrap = ("--bootstrap", stablelog_broker.bootstrap)
    assert everything.stablelog("topics", "create", "parquet", *bootstrap).returncode == 0
    produce = ("produce", "parquet", "--input", "parquet", "--file", "x", *bootstrap)
    assert "pip install 'stablelog[parquet]'" in everything.stablelog(*produce).stderr
    everything.install("[parquet]")
    assert "pip install" not in everything.stablelog(*produce).stderr


def test_the_extra_oauth_proves_tokens(everything):
    program = "from stablelog.security import tokens; import joserfc"
    assert "joserfc" in everything.run("-c", program).stderr
    everything.install("[oauth]")
    assert everything.run("-c", program).returncode == 0


def test_all_is_everything_but_spark(everything, wheel):
    everything.install("[all]")
    assert {"typer", "rich", "obstore", "pyarrow", "joserfc"} <= everything.installed()
    assert "pyspark" not in everything.installed()


@pytest.mark.night
def test_the_extra_spark_brings_spark(everything):
    everything.install("[spark]")
    program = """
import stablelog
from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version
require_minimum_pandas_version(), require_minimum_pyarrow_version()  # of mapInArrow: stablelog.spark.verify
spark = stablelog.spark.session()
with stablelog.serve() as broker:
    with stablelog.connect(broker.bootstrap) as client:
        client.admin.topics.create("t")
        with client.transaction() as txn:
            txn.write("t", b"one")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t"}
    print(spark.read.format("stablelog").options(**options).load().count())
"""
    done = everything.run("-c", program)
    assert done.stdout.split()[-1] == "1", done.stderr
