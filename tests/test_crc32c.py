"""CRC-32C: the right sum, by the extension module alone, and by the package where that cannot be had."""

import types

import crc32c as package
import pytest

from stablelog.crc32c import crc32c, load
from tests.test_imports import imported

CHECK = b"123456789", 0xE3069283  # the check value of the catalogue of CRCs


def test_the_sum_is_that_of_the_library():
    content, expected = CHECK
    assert crc32c(content) == package.crc32c(content) == expected
    assert crc32c(memoryview(content)[4:], crc32c(content[:4])) == expected


def test_the_package_is_not_imported():
    found = imported("import stablelog.crc32c")
    assert not {name for name in found if name.startswith(("crc32c", "argparse", "email"))}


@pytest.mark.parametrize("extension", ["_not_there", "__init__"])
def test_the_package_stands_in_for_an_extension_of_another_name(extension):
    found = load("crc32c", extension)
    assert isinstance(found, types.ModuleType)
    assert found.crc32c(CHECK[0]) == CHECK[1]


def test_an_extension_that_cannot_be_loaded_is_replaced_by_the_package(tmp_path, monkeypatch):
    inner = tmp_path / "half"
    inner.mkdir()
    (inner / "__init__.py").write_text("value = 'of the package'\n")
    (inner / "_half.py").write_text("raise ImportError('no such processor')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("half", "_half").value == "of the package"


def test_a_library_that_is_not_installed_is_named():
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load("no_such_library", "_no_such_library")
