"""A file whose loss does not go unnoticed, because `meta.properties` says that it exists."""

import errno
import random
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from stablelog.data_directory.meta_properties import META_FILE
from stablelog.data_directory.registered_file import (
    REGISTERED_FILES,
    FileKind,
    RegisteredFile,
    decode_json,
    encode_json,
    has_registered_file,
    is_registered,
    with_crc,
)
from stablelog.errors import DamageError, DiskError, RefusedError, UnknownFormatError
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash

DATA = Path("/data")
META = DATA / META_FILE
META_CONTENT = b"version=1\ncluster.id=x\nnode.id=1\n"
KIND = FileKind("things.json", key="stablelog.things", what="the things", why="the things of all", version=2)
EMPTY, ONE = encode_json(2, {"things": []}), encode_json(2, {"things": ["one"]})


def decode(content):
    return decode_json(KIND, content, lambda _version, members: list(members["things"]))


def fresh(meta=META_CONTENT, kind=KIND):
    disk = SimDisk()
    disk.make_dir(DATA)
    disk.write_atomic(META, meta)
    return disk, noted(disk, kind)


def noted(disk, kind=KIND, writer=None):
    return RegisteredFile(kind, disk, DATA, decode=decode, empty=EMPTY, writer=writer)


# -- the content -------------------------------------------------------------------------------------------------------


def test_the_content_is_a_line_of_json_and_its_crc():
    assert encode_json(2, {"a": [1, "x"]}) == b'{"version":2,"a":[1,"x"]}\n00b1d739\n'


def test_the_reader_gets_the_version_and_the_members():
    found = decode_json(KIND, encode_json(1, {"a": 5}), lambda version, members: (version, members["a"]))
    assert found == (1, 5)


def test_any_changed_bit_is_found():
    for at in range(len(ONE) - 1):
        for bit in range(8):
            changed = ONE[:at] + bytes([ONE[at] ^ 1 << bit]) + ONE[at + 1 :]
            with pytest.raises(DamageError, match="the CRC in the file does not match its content"):
                decode(changed)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "the file does not hold the things"),
        (b"7", "the file does not hold the things: a value in it is of another type than expected"),
        (b"{}", "the file does not hold the things: it has no version"),
        (b'{"version":2}', "the file does not hold the things: it has no things"),
        (b'{"version":2,"things":7}', "the file does not hold the things: a value in it is of another type"),
        (
            b'{"version":"2","things":[]}',
            "the file does not hold the things: a value in it is of another type",
        ),
        (b'{"version":0,"things":[]}', "the file has version 0, and this release reads versions 1 to 2"),
        (
            b'{"version":true,"things":[]}',
            "the file has version True, and this release reads versions 1 to 2",
        ),
        (b'{"version":1.5,"things":[]}', "the file has version 1.5, and this release reads versions 1 to 2"),
    ],
)
def test_content_that_cannot_be_read_is_refused_with_what_is_wrong(text, why):
    with pytest.raises(DamageError, match=why):
        decode(with_crc(text))


def test_content_of_a_later_release_is_refused_by_version():
    with pytest.raises(
        UnknownFormatError, match=r"^the things of version 3; this release reads versions up to 2"
    ):
        decode(encode_json(3, {"things": []}))


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_file_that_was_never_written_has_the_content_without_entries_and_is_not_written():
    disk, file = fresh()
    before = list(disk.files(DATA))
    assert file.load() == []
    assert list(disk.files(DATA)) == before


def test_what_was_stored_is_loaded():
    _, file = fresh()
    file.store(ONE)
    assert file.load() == ["one"]
    file.replace(EMPTY)
    assert file.load() == []


@pytest.mark.parametrize("meta", [META_CONTENT, META_CONTENT.rstrip(), b""])
def test_the_line_is_written_once_and_the_other_lines_stay(meta):
    disk, file = fresh(meta)
    for _ in range(2):
        file.register()
        file.store(ONE)
    lines = [line for line in disk.read_bytes(META).decode().splitlines() if line]
    assert lines == [*meta.decode().splitlines(), "stablelog.things=things.json"]


def test_a_file_that_was_noted_without_content_has_no_entries():
    disk, file = fresh()
    file.register()
    assert disk.read_bytes(file.path) == EMPTY
    assert file.load() == []


def test_a_file_that_was_lost_is_refused_with_what_to_do():
    disk, file = fresh()
    file.store(ONE)
    disk.remove(file.path)
    with pytest.raises(DamageError) as refused:
        file.load()
    assert str(refused.value) == (
        "/data/things.json, which holds the things of all, cannot be read: the file is missing. Restore the "
        "file; or, to start without its content, remove the file and the line stablelog.things=things.json of "
        "meta.properties"
    )
    disk.write_atomic(META, META_CONTENT)
    assert file.load() == [], "as the message says"


def test_a_damaged_file_is_refused_by_path_also_if_no_line_notes_it():
    disk, file = fresh()
    disk.write_atomic(file.path, b"x")
    with pytest.raises(
        DamageError, match=r"^/data/things.json, .* cannot be read: the CRC in the file does not match"
    ):
        file.load()


def test_a_file_of_a_later_release_is_refused_by_path():
    disk, file = fresh()
    disk.write_atomic(file.path, encode_json(3, {}))
    with pytest.raises(UnknownFormatError, match=r"^/data/things.json: the things of version 3"):
        file.load()


def test_a_directory_has_the_file_if_it_is_there_or_if_it_is_noted():
    disk, file = fresh()
    assert not has_registered_file(KIND, disk, DATA)
    disk.write_atomic(file.path, EMPTY)
    assert has_registered_file(KIND, disk, DATA)
    assert not is_registered(KIND, disk, DATA)
    file.register()
    disk.remove(file.path)
    assert has_registered_file(KIND, disk, DATA)
    assert is_registered(KIND, disk, DATA)


def test_without_meta_properties_nothing_is_noted():
    disk = SimDisk()
    disk.make_dir(DATA)
    assert not is_registered(KIND, disk, DATA)


def test_a_line_that_only_begins_like_the_files_does_not_note_it():
    disk, _ = fresh(b"stablelog.things=things.json.old\n#stablelog.things=things.json\n")
    assert not is_registered(KIND, disk, DATA)


@pytest.mark.parametrize("was_stored", [False, True], ids=["first write", "later write"])
def test_after_a_crash_at_any_moment_the_file_can_be_loaded_and_has_the_old_or_the_new_content(was_stored):
    def prepared():
        disk, file = fresh()
        if was_stored:
            file.store(encode_json(2, {"things": ["old"]}))
        return disk, file

    disk, file = prepared()
    begun = disk.steps
    file.store(ONE)
    assert disk.steps > begun
    for crash_at in range(begun + 1, disk.steps + 1):
        for seed in range(3):
            crashing, storing = prepared()
            crashing.crash_at = crash_at
            with pytest.raises(SimulatedCrash):
                storing.store(ONE)
            found = noted(crashing.crash(random.Random(seed))).load()
            assert found in (["old"] if was_stored else [], ["one"]), f"after a crash at step {crash_at}"
    assert noted(disk.crash(random.Random(0))).load() == ["one"], "what was stored is durable"


def test_a_disk_that_refuses_the_write_refuses_the_request_and_is_logged(caplog):
    disk, file = fresh()
    begun = disk.steps
    file.store(ONE)
    for fail_at in range(begun + 1, disk.steps + 1):
        failing, storing = fresh()
        failing.fail_at, failing.number = fail_at, errno.ENOSPC
        with pytest.raises(RefusedError, match=r"the things cannot be stored: .*ENOSPC") as refused:
            storing.store(ONE)
        assert refused.value.code is ErrorCode.kafka_storage_error
    assert "the things cannot be stored" in caplog.text


def test_a_replacement_that_the_disk_refuses_is_an_error_of_the_disk():
    disk, file = fresh()
    file.store(EMPTY)
    disk.fail_at, disk.number = disk.steps + 1, errno.ENOSPC
    with pytest.raises(DiskError):
        file.replace(ONE)


class Recorder:
    """A writer that remembers what it was to write, and writes it."""

    def __init__(self, disk):
        self.disk, self.written = disk, []

    def write_atomic(self, path, content, *, is_private=False):
        self.written.append((path.name, is_private))
        self.disk.write_atomic(path, content, is_private=is_private)


@pytest.mark.parametrize("is_private", [False, True])
def test_the_writer_writes_the_file_before_its_line_and_only_a_private_file_is_private(is_private):
    disk, _ = fresh()
    writer = Recorder(disk)
    noted(disk, KIND._replace(is_private=is_private), writer).store(ONE)
    assert writer.written == [("things.json", is_private), (META_FILE, False), ("things.json", is_private)]


def test_no_two_files_have_one_name_or_one_key_and_only_that_of_the_users_is_private():
    assert (
        len({kind.name for kind in REGISTERED_FILES})
        == len({kind.key for kind in REGISTERED_FILES})
        == len(REGISTERED_FILES)
    )
    assert [kind.name for kind in REGISTERED_FILES if kind.is_private] == ["users.json"]
