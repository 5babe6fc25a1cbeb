import shutil

import pytest

from tests.free_space import why_too_little


@pytest.mark.parametrize(("mib", "found"), [(511, "has 511 MiB of free space"), (512, None)])
def test_a_disk_that_is_nearly_full_ends_the_run(monkeypatch, mib, found):
    usage = shutil.disk_usage("/")._replace(free=(mib << 20) + 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _directory: usage)
    why = why_too_little()
    assert why is None if found is None else found in why
