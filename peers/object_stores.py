"""Real object stores on this machine, for the contract tests: a Ceph gateway, and Azurite.

Ceph comes from the packages of the system: its programs are installed by apt-get if they are missing and this process
may do so. Azurite comes from npm, once, into `target/azurite`. Where a store cannot be had, `NotAvailableError` says what
is missing.

    with ceph() as store:
        open_store("s3://bucket/prefix", allow_http=True, options=store.options)
"""

import base64
import contextlib
import datetime as dt
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

AZURITE_VERSION = "3.37.0"
AZURITE = Path(__file__).parents[1] / "target" / "azurite"
CEPH_PACKAGES = ("ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "ceph-common")
CEPH_PROGRAMS = ("ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "radosgw-admin", "monmaptool", "ceph")
INSTALL_TIMEOUT_S = 600
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 20
HOST = "127.0.0.1"
BUCKET = "bucket"
# The account of Azurite, which its documentation names.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

CEPH_CONF = """\
[global]
fsid = {fsid}
mon host = v1:{host}:{mon_port}
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
ms bind msgr2 = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 1
mon data avail warn = 2
osd objectstore = memstore
memstore device bytes = 4294967296
osd memory target = 939524096
log file = {directory}/$name.log
admin socket = {directory}/$name.asok
pid file = {directory}/$name.pid
run dir = {directory}
setuser match path =
public addr = {host}
cluster addr = {host}
[mon.a]
mon data = {directory}/mon
public addr = {host}:{mon_port}
[mgr.x]
mgr data = {directory}/mgr
[osd.0]
osd data = {directory}/osd
[client.rgw.a]
rgw data = {directory}/rgw
rgw frontends = beast endpoint={host}:{port}
rgw enable usage log = false
"""


class NotAvailableError(Exception):
    """The store cannot be run here; the message says what is missing."""


class RealStore(NamedTuple):
    """A store that runs.

    Attributes:
        url: the URL of an empty bucket or container.
        options: options of obstore's store that reach it.
        version: the version of the program.
    """

    url: str
    options: dict[str, str]
    version: str


@contextlib.contextmanager
def ceph() -> Iterator[RealStore]:
    """Run a Ceph gateway with an empty bucket: a monitor, a manager, a storage daemon in memory and the gateway.

    Raises:
        NotAvailableError: its programs are missing and cannot be installed, or do not start.
    """
    _install_ceph()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ceph-")))
        for name in ("mon", "mgr", "osd", "rgw"):
            (directory / name).mkdir()
        conf, fsid, mon_port, port = directory / "ceph.conf", str(uuid.uuid4()), _free_port(), _free_port()
        conf.write_text(
            CEPH_CONF.format(fsid=fsid, host=HOST, mon_port=mon_port, port=port, directory=directory)
        )
        monmap = str(directory / "monmap")
        address = f"[v1:{HOST}:{mon_port}]"
        _run("monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", address, monmap)
        base = ("-c", str(conf))
        _run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, *base)
        stack.enter_context(_running(directory, "ceph-mon", "-i", "a", *base, "-f"))
        _until(lambda: _succeeds("ceph", *base, "--connect-timeout", "5", "-s"), "Ceph's monitor")
        stack.enter_context(_running(directory, "ceph-mgr", "-i", "x", *base, "-f"))
        osd = str(uuid.uuid4())
        _run("ceph", *base, "osd", "new", osd)
        _run("ceph-osd", "-i", "0", *base, "--mkfs", "--osd-uuid", osd)
        stack.enter_context(_running(directory, "ceph-osd", "-i", "0", *base, "-f"))
        stack.enter_context(_running(directory, "radosgw", "-n", "client.rgw.a", *base, "-f"))
        _until(lambda: _answers(port), "Ceph's gateway")
        user = (
            "--uid",
            "test",
            "--display-name",
            "test",
            "--access-key",
            "test",
            "--secret-key",
            "testsecret",
        )
        _run("radosgw-admin", *base, "user", "create", *user)
        options = {
            "aws_endpoint": f"http://{HOST}:{port}",
            "aws_access_key_id": "test",
            "aws_secret_access_key": "testsecret",
            "aws_region": "us-east-1",
        }
        _create_bucket(options)
        yield RealStore(f"s3://{BUCKET}", options, _run("ceph", "--version").split()[2])


def _install_ceph() -> None:
    missing = [program for program in CEPH_PROGRAMS if shutil.which(program) is None]
    if not missing:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *CEPH_PACKAGES]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, env=environment, capture_output=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
    missing = [program for program in CEPH_PROGRAMS if shutil.which(program) is None]
    if missing:
        raise NotAvailableError(
            f"Ceph's {', '.join(missing)} are missing: install the packages {' '.join(CEPH_PACKAGES)}"
        )


def _create_bucket(options: dict[str, str]) -> None:
    import boto3

    boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint"],
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
        region_name=options["aws_region"],
    ).create_bucket(Bucket=BUCKET)


@contextlib.contextmanager
def azurite() -> Iterator[RealStore]:
    """Run Azurite, the emulator of Azure Blob Storage, with an empty container.

    Raises:
        NotAvailableError: Node.js or npm is missing, npm cannot install Azurite, or it does not start.
    """
    program = _install_azurite()
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="azurite-") as name:
        directory = Path(name)
        options = ("--blobHost", HOST, "--blobPort", str(port), "--location", name)
        command = ("node", str(program), *options, "--silent", "--skipApiVersionCheck")
        with _running(directory, *command):
            _until(lambda: _answers(port), "Azurite")
            _create_container(port)
            yield RealStore(
                f"az://{BUCKET}",
                {
                    "azure_storage_account_name": ACCOUNT,
                    "azure_storage_account_key": ACCOUNT_KEY,
                    "azure_storage_endpoint": f"http://{HOST}:{port}/{ACCOUNT}",
                },
                AZURITE_VERSION,
            )


def _install_azurite() -> Path:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise NotAvailableError(f"{program} is missing, which Azurite needs")
    program = AZURITE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        AZURITE.mkdir(parents=True, exist_ok=True)
        package = f"azurite@{AZURITE_VERSION}"
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(AZURITE), package]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        if done.returncode:
            raise NotAvailableError(f"npm cannot install {package}: {done.stderr.strip()[-300:]}")
    return program


def _create_container(port: int) -> None:
    now = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    version, path = "2021-12-02", f"/{ACCOUNT}/{BUCKET}"
    signed = "\n".join(
        [
            "PUT",
            *[""] * 11,
            f"x-ms-date:{now}",
            f"x-ms-version:{version}",
            f"/{ACCOUNT}{path}",
            "restype:container",
        ]
    )
    signature = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": now,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}",
        "Content-Length": "0",
    }
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request("PUT", f"{path}?restype=container", headers=headers)
    answer = connection.getresponse()
    if answer.status != http.HTTPStatus.CREATED:
        raise NotAvailableError(f"Azurite has created no container: {answer.status} {answer.read()!r}")


@contextlib.contextmanager
def _running(directory: Path, *command: str) -> Iterator[None]:
    """Run a program until the block ends. Its output goes to a file."""
    with (directory / f"{Path(command[0]).name}.out").open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    if done.returncode:
        raise NotAvailableError(f"{' '.join(command)} has failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, timeout=START_TIMEOUT_S, check=False).returncode == 0


def _until(holds: Callable[[], bool], name: str) -> None:
    end_s = time.monotonic() + START_TIMEOUT_S
    while not holds():
        if time.monotonic() > end_s:
            raise NotAvailableError(f"{name} does not answer")
        time.sleep(0.2)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        connection.request("GET", "/")
        return connection.getresponse().status > 0
    return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port
