"""What the demo is told on its command line."""

import sys

import pytest

from demo.__main__ import main


@pytest.mark.parametrize("scene", ["crashes", "cuts", "tiers"])
def test_what_an_earlier_run_has_left_is_not_gone_on_with(scene, tmp_path, monkeypatch, capsys):
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.setattr(sys, "argv", ["demo", scene, "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "is not empty" in capsys.readouterr().err


def test_the_scene_of_tiers_needs_rows_for_several_segments(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["demo", "tiers", "--rows", "3999"])
    with pytest.raises(SystemExit, match="at least 4,000 flights"):
        main()


def test_no_rows_are_too_few(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo", "--rows", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "at least 1" in capsys.readouterr().err
