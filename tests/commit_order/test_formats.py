"""Check of the format versions of a commit-ordered partition's files, before a start of the broker writes anything."""

import re

import pytest

from stablelog.commit_order.formats import check_formats
from stablelog.commit_order.index_format import CRC, SUMMARY, SUMMARY_SUFFIX, VERSION, CommitSummary
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import encode_log_start
from stablelog.log.files.names import VIEW_START_FILE, file_path
from stablelog.testing.sim_disk import SimDisk
from tests.commit_order.committed_log import DIRECTORY
from tests.commit_order.test_index_format import summary, with_crc

OLD, NEW = (file_path(DIRECTORY, base, SUMMARY_SUFFIX) for base in (0, 40))


def listing(files):
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for path, content in files.items():
        disk.write_atomic(path, content)
    return Listing(disk, DIRECTORY)


def of_version(version):
    return with_crc(version.to_bytes(2) + summary().encode()[2 : -CRC.size])


def test_a_directory_without_these_files_passes():
    check_formats(listing({}))


def test_files_of_this_release_pass():
    check_formats(
        listing(
            {
                DIRECTORY / VIEW_START_FILE: encode_log_start(31),
                OLD: summary().encode(),
                NEW: summary().encode(),
            }
        )
    )


def test_a_view_start_of_a_later_release_is_refused_by_its_path():
    path = DIRECTORY / VIEW_START_FILE
    with pytest.raises(UnknownFormatError, match=rf"^{path}: .* of version 2"):
        check_formats(listing({path: encode_log_start(31).replace(b"1", b"2", 1)}))


def test_a_damaged_view_start_is_refused_by_its_path():
    """Nothing can rebuild it: where the view begins is in no other file."""
    path = DIRECTORY / VIEW_START_FILE
    with pytest.raises(DamageError, match=re.escape(f"{path} is damaged")):
        check_formats(listing({path: b"1\n"}))


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_the_newest_summary_of_another_form_is_refused_by_its_path(version):
    with pytest.raises(UnknownFormatError, match=rf"^{NEW}: a commit summary of version {version}"):
        check_formats(listing({OLD: summary().encode(), NEW: of_version(version)}))


def test_only_the_newest_summary_is_read():
    check_formats(listing({OLD: of_version(VERSION + 1), NEW: summary().encode()}))


@pytest.mark.parametrize("content", [b"", summary().encode()[:-1], bytes(SUMMARY.size + CRC.size)])
def test_a_damaged_summary_passes_because_the_start_rebuilds_the_index(content):
    with pytest.raises(DamageError):
        CommitSummary.decode(content)
    check_formats(listing({NEW: content}))
