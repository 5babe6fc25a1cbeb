"""The parts of the test modules that the workers of pytest-xdist compile."""

import sys

from tests.shared_compilation import import_part, part


def test_the_workers_compile_each_module_once():
    paths = list(range(11))
    parts = [part(paths, f"gw{number}", 4) for number in range(4)]
    assert sorted(path for each in parts for path in each) == paths
    assert {len(each) for each in parts} == {2, 3}
    assert part(paths, "gw5", 4) == parts[1], "a worker that replaces another one has a greater number"


def test_a_module_that_cannot_be_imported_is_left_to_the_collection(tmp_path, monkeypatch):
    contents = {
        "test_it_raises": "raise ValueError",
        "test_it_is_skipped": "import pytest; pytest.skip(allow_module_level=True)",
        "test_it_is_sound": "",
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    import_part(tmp_path.glob("*.py"), tmp_path, {"workerid": "gw0", "workercount": 1})
    assert {name for name in contents if name in sys.modules} == {"test_it_is_sound"}
    monkeypatch.delitem(sys.modules, "test_it_is_sound")
