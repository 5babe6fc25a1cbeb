"""What is run by this user lies where nobody else may write."""

import os
import tempfile

import pytest

from stablelog.spark import private_directories


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No place is named, and there is no home; returns the temporary directory."""
    monkeypatch.delenv("STABLELOG_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_first_place_that_can_be_had_is_taken(nowhere, tmp_path, monkeypatch):
    mine = f"stablelog-{os.getuid()}"
    assert private_directories.own_directory("it") == nowhere / mine / "it"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert private_directories.own_directory("it") == tmp_path / "home" / ".cache" / "stablelog" / "it"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert private_directories.own_directory("it") == tmp_path / "cache" / "stablelog" / "it"
    monkeypatch.setenv("STABLELOG_CACHE_DIR", str(tmp_path / "deep" / "named"))
    assert private_directories.own_directory("it") == tmp_path / "deep" / "named" / "it"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_where_others_may_write_is_no_place(nowhere, monkeypatch, mode):
    place = nowhere / f"stablelog-{os.getuid()}"
    assert private_directories.own_directory("it") == place / "it"
    place.chmod(mode)  # others may put another directory in the place of this one
    assert private_directories.own_directory("it") is None
    place.chmod(0o755)
    (place / "it").chmod(mode)
    assert private_directories.own_directory("it") is None


def test_a_link_is_no_place(nowhere, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (nowhere / f"stablelog-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert private_directories.own_directory("it") is None


def test_what_root_has_made_is_for_everybody(nowhere, tmp_path, monkeypatch):
    monkeypatch.setenv("STABLELOG_CACHE_DIR", str(tmp_path / "image"))
    made = private_directories.own_directory("it")
    monkeypatch.setattr(private_directories, "ROOT_UID", os.getuid())
    assert list(private_directories.images_directories("it")) == [made]
    for directory in (made, made.parent):
        directory.chmod(0o775)
        assert list(private_directories.images_directories("it")) == []
        directory.chmod(0o755)
    monkeypatch.setattr(private_directories, "ROOT_UID", os.getuid() + 1)
    assert list(private_directories.images_directories("it")) == []
