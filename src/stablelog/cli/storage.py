"""`stablelog storage`: object stores for tiered storage."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from stablelog.cli.options import AllowHttp, AsJson, StoreOptions, StoreUrl, command_app, examples
from stablelog.cli.output import FINDINGS, counted, fail, print_done, print_json, print_table
from stablelog.env.objects.check import TRIALS
from stablelog.env.objects.check import check as check_promises
from stablelog.env.objects.opening import open_store
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.errors import DamageError, ObjectMissingError, UnknownFormatError
from stablelog.ops import stored_garbage
from stablelog.ops.stored_garbage import Garbage, find_garbage, store_time_ms
from stablelog.ops.stored_partitions import ObjectFault, PartitionUsage, Verification, measure_partition
from stablelog.tier.names import RemotePartition
from stablelog.tier.prefix import Prefix

app = command_app("Check object stores, and look at what is in them.")

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Only this topic. The option may be repeated."),
]
DAY_MS = 24 * 3600 * 1000
GARBAGE_COLUMNS = ("topic", "partition", "objects", "bytes", "why")
COLUMNS = (
    "topic",
    "partition",
    "log start",
    "end offset",
    "segments",
    "bytes",
    "marked",
    "marked bytes",
    "unnamed",
    "unnamed bytes",
    "manifests",
    "pins",
)


@app.command(epilog=examples("stablelog storage check s3://bucket/prefix"))
def check(
    url: StoreUrl, allow_http: AllowHttp = False, options: StoreOptions = None, as_json: AsJson = False
) -> None:
    """Check that a store keeps what tiered storage needs. Exit code 1 if it does not.

    The check also measures the rates of the store, and says what they are too slow for. It writes up to 60 MiB under
    `check/` of the URL and deletes it again.
    """
    store = open_command_store(url, options, allow_http=allow_http)
    findings = []
    for finding in check_promises(store):
        findings.append(finding)
        if not as_json:
            mark = "FAULT" if finding.fault else "slow" if finding.slow else "ok"
            measured = f": {finding.measured}" if finding.measured else ""
            sys.stdout.write(f"{mark:5}  {finding.promise}{measured}\n")
            if finding.fault:
                sys.stdout.write(f"       {finding.fault}\n")
            if finding.slow:
                sys.stdout.write(f"       too slow for {finding.slow}\n")
            sys.stdout.flush()
    faults = [finding for finding in findings if finding.fault]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_done(
            f"{counted(len(TRIALS), 'promise')} of {store.url}, {counted(len(faults), 'fault')}",
            as_json=False,
        )
    if faults:
        sys.exit(FINDINGS)


@app.command("ls", epilog=examples("stablelog storage ls s3://bucket/prefix --topic flights"))
def list_partitions(
    url: StoreUrl,
    topics: Topics = None,
    allow_http: AllowHttp = False,
    options: StoreOptions = None,
    as_json: AsJson = False,
) -> None:
    """List the partitions in a store: offsets, segments and bytes. Exit code 1 if a manifest is damaged.

    `marked` segments are being deleted. `unnamed` objects belong to copies that are under way, or are left of copies that
    a crash has ended.
    """
    prefix = Prefix(open_command_store(url, options, allow_http=allow_http))
    found: list[PartitionUsage] = []
    faults: list[ObjectFault] = []
    for partition in _partitions(prefix, topics):
        try:
            found.append(measure_partition(prefix, partition))
        except (DamageError, UnknownFormatError) as error:
            faults.append(ObjectFault(partition.chain, str(error)))
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        print_table(f"partitions in {prefix.store.url}", COLUMNS, [_cells(one) for one in found])
    _tell(prefix.store, faults)
    if faults:
        sys.exit(FINDINGS)


def _cells(one: PartitionUsage) -> Sequence[object]:
    cells = asdict(one)
    del cells["topic_id"]
    return list(cells.values())


@app.command(epilog=examples("stablelog storage verify s3://bucket/prefix --topic flights"))
def verify(
    url: StoreUrl,
    topics: Topics = None,
    allow_http: AllowHttp = False,
    options: StoreOptions = None,
    as_json: AsJson = False,
) -> None:
    """Read all segments in a store, and name each object that is missing or damaged. Exit code 1 if there is one.

    The command checks sizes, offsets and CRCs. A broker may use the store meanwhile.
    """
    prefix = Prefix(open_command_store(url, options, allow_http=allow_http))
    faults: list[ObjectFault] = []
    segment_count = size = 0
    partitions = _partitions(prefix, topics)
    for number, partition in enumerate(partitions, 1):
        try:
            verification = Verification(prefix, partition)
        except (DamageError, UnknownFormatError) as error:
            faults.append(ObjectFault(partition.chain, str(error)))
            continue
        for segment in verification.segments:
            _progress(f"partition {number} of {len(partitions)}, {size >> 20} MiB read")
            faults += verification.faults_of(segment)
            segment_count += 1
            size += segment.size
    _progress("")
    _tell(prefix.store, faults)
    print_done(
        f"{counted(segment_count, 'segment')} of {counted(len(partitions), 'partition')} in {prefix.store.url}, "
        f"{size} bytes, {counted(len(faults), 'fault')}",
        as_json=as_json,
        segments=segment_count,
        bytes=size,
        faults=[asdict(one) for one in faults],
    )
    if faults:
        sys.exit(FINDINGS)


@app.command(epilog=examples("stablelog storage clean s3://bucket/prefix --older-than-days 30 --delete"))
def clean(
    url: StoreUrl,
    topics: Topics = None,
    older_than_days: Annotated[
        int, typer.Option(min=1, help="Only objects of this age, unless their topic was deleted.")
    ] = 7,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the objects. Without it they are listed only.")
    ] = False,
    allow_http: AllowHttp = False,
    options: StoreOptions = None,
    as_json: AsJson = False,
) -> None:
    """Find the objects in a store that nothing needs, and delete them with `--delete`.

    These are the objects of deleted topics, and objects that no manifest names because an upload has failed. A broker
    deletes such objects itself, unless it has lost its disk. A broker may use the store meanwhile. Partitions that a
    reader has pinned are left as they are. Exit code 1 if a manifest is damaged.
    """
    prefix = Prefix(open_command_store(url, options, allow_http=allow_http))
    known = {
        partition: deleted_ms
        for topic in _topics(prefix, topics)
        for partition, deleted_ms in prefix.partitions_with_deleted(topic).items()
    }
    now_ms = store_time_ms(prefix.store)
    found: list[Garbage] = []
    faults: list[ObjectFault] = []
    count = size = 0
    for number, (partition, deleted_ms) in enumerate(known.items(), 1):
        _progress(f"partition {number} of {len(known)}, {counted(count, 'object')}, {size >> 20} MiB")
        try:
            one = find_garbage(
                prefix, partition, deleted_ms=deleted_ms, now_ms=now_ms, age_ms=older_than_days * DAY_MS
            )
            if not one.objects:
                continue
            found.append(one)
            if one.is_pinned:
                continue
            for stored in stored_garbage.delete_garbage(prefix, one) if delete else one.objects:
                count += 1
                size += stored.size
        except (DamageError, UnknownFormatError) as error:
            faults.append(ObjectFault(partition.chain, str(error)))
    _progress("")
    if not as_json and found:
        print_table(
            f"objects that nothing needs in {prefix.store.url}", GARBAGE_COLUMNS, map(_garbage_cells, found)
        )
    _tell(prefix.store, faults)
    print_done(
        f"{counted(count, 'object')} of {size} bytes {'deleted' if delete else 'found'} in {prefix.store.url}"
        + ("" if delete or not count else "; --delete deletes them"),
        as_json=as_json,
        objects=count,
        bytes=size,
        is_deleted=delete,
        partitions=[dict(zip(GARBAGE_COLUMNS, _garbage_cells(one), strict=True)) for one in found],
        faults=[asdict(one) for one in faults],
    )
    if faults:
        sys.exit(FINDINGS)


def _garbage_cells(one: Garbage) -> Sequence[object]:
    why = "a deleted topic" if one.is_deleted else "no manifest names them"
    if one.is_pinned:
        why += "; kept, because a reader has pinned the partition"
    return one.partition.topic, one.partition.partition, len(one.objects), one.size, why


def _partitions(prefix: Prefix, topics: Sequence[str] | None) -> list[RemotePartition]:
    """Return the partitions of these topics in the store; all partitions if no topics are given. `prefix` is the prefix
    of the store, under which the broker keeps all its objects.

    Raises:
        UnavailableError: the store is empty, or a topic is missing.
    """
    return [one for topic in _topics(prefix, topics) for one in prefix.partitions(topic)]


def _topics(prefix: Prefix, topics: Sequence[str] | None) -> list[str]:
    """Check that the store has these topics, and return their names; the names of all topics in the store if none are
    given. `prefix` is the prefix of the store, under which the broker keeps all its objects.

    Raises:
        UnavailableError: the store is empty, or a topic is missing.
    """
    try:
        prefix.cluster_id()
    except ObjectMissingError:
        fail(f"{prefix.store.url} has no objects of a broker")
    known = prefix.topics()
    for topic in topics or []:
        if topic not in known:
            fail(f"{prefix.store.url} has no topic {topic!r}")
    return [topic for topic in known if not topics or topic in topics]


def _tell(store: ObjectStore, faults: Sequence[ObjectFault]) -> None:
    """Print a line for each fault of an object in the store: its key, and what is wrong with it."""
    for one in faults:
        sys.stderr.write(f"{store.url}/{one.key}: {one.fault}\n")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def open_command_store(url: str, options: Sequence[str] | None, *, allow_http: bool) -> ObjectStore:
    """Open the object store that the options of a command name, and return it.

    Args:
        url: the URL of the store.
        options: options of the store, each as NAME=VALUE; None for none.
        allow_http: whether a connection without TLS is allowed.
    """
    return open_store(url, allow_http=allow_http, options=dict(pair(option) for option in options or []))


def pair(option: str) -> tuple[str, str]:
    """Split the text NAME=VALUE of an option of the object store, and return the pair: the name and the value."""
    name, equals, value = option.partition("=")
    if not name or not equals:
        fail(f"--option {option!r} is not NAME=VALUE")
    return name, value
