"""What a later release has written to a partition's directory is found before this one writes anything there."""

import pytest

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.listing import SMALL_SIZE, Listing
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import ENTRY, AbortedTxn
from stablelog.log.producer_state.producer import ProducerEntry
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.snapshots import (
    decode_producers,
    decode_snapshot,
    encode_producers,
    encode_snapshot,
)
from stablelog.log.recovery.formats import check_formats
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY

BASES = (7, 10, 200)
TABLE = ProducerTable.from_producers([ProducerEntry(1, 0)])
ABORT = ENTRY.pack(0, *AbortedTxn(1, 7, 9, 10))
FILES = {
    ".summary": Summary(7, 10, log_size=1).encode(),
    ".txnindex": ABORT * 3,
    ".snapshot": b"".join(encode_snapshot(TABLE)),
    ".producers": b"".join(encode_producers(TABLE, Summary(7, 10))),
}
KNOWN = {".summary": 1, ".txnindex": 0, ".snapshot": 1, ".producers": 2}


def directory(**changed):
    """A directory with files of each kind; `changed` replaces some, or adds them."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    files = {f"{base:020d}{suffix}": content for base in BASES for suffix, content in FILES.items()}
    files |= {EPOCH_FILE: LeaderEpochs([(1, 7)]).encode(), LOG_START_FILE: encode_log_start(7)}
    for name, content in (files | changed).items():
        disk.write_atomic(DIRECTORY / name, content)
    return disk


def refused(disk):
    """The file that is refused, with its version and the one that is known; None if none is."""
    before = {path: disk.read_bytes(path) for path in disk.files()}
    try:
        check_formats(Listing(disk, DIRECTORY))
    except UnknownFormatError as newer:
        return newer.place, newer.found, newer.known
    finally:
        assert {path: disk.read_bytes(path) for path in disk.files()} == before
    return None


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("way", ["", ".cleaned", ".swap"])
def test_the_newest_file_of_each_kind_is_looked_at_and_all_that_compaction_may_have_written(suffix, way):
    content, known = FILES[suffix], KNOWN[suffix]
    for place, base in enumerate(BASES):
        for version in (known, known + 1, known + 2, known + 256):
            name = f"{base:020d}{suffix}{way}"
            disk = directory(**{name: version.to_bytes(2, "big") + content[2:]})
            is_looked_at = suffix in (".summary", ".txnindex") or place == 2
            is_newer = version in (known + 1, known + 2)  # further ahead it is damage
            wanted = (str(DIRECTORY / name), version, known) if is_looked_at and is_newer else None
            assert refused(disk) == wanted, (name, version)


@pytest.mark.parametrize("suffix", FILES)
def test_files_of_other_names_are_nobodys(suffix):
    later = (KNOWN[suffix] + 1).to_bytes(2, "big") + FILES[suffix][2:]
    for name in (f"{200:020d}{suffix}.old", f"{2**63:020d}{suffix}", f"200{suffix}", f"x{suffix}"):
        assert refused(directory(**{name: later})) is None, name


def test_the_version_in_the_first_line_of_a_text_is_looked_at():
    assert refused(directory()) is None
    for name, content, known in (
        (EPOCH_FILE, b"1\n1\n1 7\n", 0),
        (EPOCH_FILE, b"2\n" + b"what is not known yet" * 4000, 0),
        (LOG_START_FILE, encode_log_start(7).replace(b"1\n", b"2\n", 1), 1),
    ):
        assert refused(directory(**{name: content})) == (str(DIRECTORY / name), int(content[:1]), known)


@pytest.mark.parametrize("name", [EPOCH_FILE, LOG_START_FILE, *(f"{200:020d}{suffix}" for suffix in FILES)])
@pytest.mark.parametrize("content", [b"", b"\0", b"\xff\xff", b"rubbish" * 20])
def test_damage_is_left_to_recovery(name, content):
    assert refused(directory(**{name: content})) is None


def test_of_indexes_of_aborts_before_the_last_one_only_the_beginning_is_read(monkeypatch):
    """A log may have thousands of them."""
    disk = directory(**{f"{base:020d}.txnindex": ABORT * 3000 for base in BASES})
    listing, sizes = Listing(disk, DIRECTORY), {}
    beginning = listing.beginning

    def watched(name, size_max):
        found = beginning(name, size_max)
        sizes[name] = len(found)
        return found

    monkeypatch.setattr(listing, "beginning", watched)
    check_formats(listing)
    found = [sizes[f"{base:020d}.txnindex"] for base in BASES]
    assert found[-1] == SMALL_SIZE, "recovery reads it"
    assert 2 <= max(found[:-1]) < 100
    assert listing.head(f"{200:020d}.txnindex") == (ABORT * 3000)[:SMALL_SIZE]


@pytest.mark.parametrize("suffix", [".summary", ".snapshot", ".producers"])
def test_each_decoder_names_the_version_that_it_does_not_know(suffix):
    """Wherever a file is read, not only where the directory is looked at."""
    decode = {
        ".summary": Summary.decode,
        ".snapshot": lambda content: decode_snapshot(content, 0),
        ".producers": decode_producers,
    }[suffix]
    for ahead in (1, 100):
        version = KNOWN[suffix] + ahead
        with pytest.raises(UnknownFormatError) as raised:
            decode(version.to_bytes(2, "big") + FILES[suffix][2:])
        assert (raised.value.found, raised.value.known) == (version, KNOWN[suffix])
    with pytest.raises(DamageError, match=f"has version {KNOWN[suffix] + 101}"):
        decode((KNOWN[suffix] + 101).to_bytes(2, "big") + FILES[suffix][2:])
