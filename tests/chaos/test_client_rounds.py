"""A round of each native client through kills and a network that does harm, in miniature; and what the oracle finds."""

import re

import pytest

from tests.chaos.client_rounds import Told, run_round, wrong_copy, wrong_outcomes
from tests.scale import SEED

STEPS = 4


@pytest.mark.extended
@pytest.mark.parametrize("face", ["asyncio", pytest.param("threads", marks=pytest.mark.night)])
def test_nothing_is_lost_or_doubled_in_a_round(face, tmp_path):
    counts, findings = run_round(face, SEED, tmp_path, STEPS)
    assert not findings
    assert counts["records"]


def at(offset, partition=0):
    return "source", partition, offset


# Three transactions of a writer: committed, aborted, and not told.
RIGHT = {at(0): "w.0", at(1): "w.1"}
TOLD = [
    Told("first", ["w.0", "w.1"], "committed", [at(0), at(1)]),
    Told("second", ["w.2"], "aborted"),
    Told("third", ["w.3", "w.4"]),
]


@pytest.mark.parametrize(
    ("written", "finding"),
    [
        (RIGHT, None),
        (RIGHT | {at(3): "w.3", at(0, 1): "w.4"}, None),
        ({at(0): "w.0"}, r"first is committed, .* \[1, 0\] times"),
        (RIGHT | {at(2): "w.1"}, r"first is committed, .* \[1, 2\] times"),
        ({at(0): "w.1", at(1): "w.0"}, "the future of w.0 has .* where w.1 is"),
        (RIGHT | {at(2): "w.2"}, r"second is aborted, .* \[1\] times"),
        (RIGHT | {at(2): "w.3"}, r"third is not told, .* \[1, 0\] times"),
        (
            RIGHT | {at(2): "w.3", at(3): "w.4", at(4): "w.3", at(5): "w.4"},
            r"third is not told, .* \[2, 2\] times",
        ),
        (RIGHT | {at(2): "w.9"}, r"nobody has written \['w.9'\]"),
    ],
)
def test_the_oracle_finds_what_a_writer_was_told_wrongly(written, finding):
    found = "\n".join(wrong_outcomes(TOLD, written))
    assert re.search(finding, found) if finding else not found


@pytest.mark.parametrize(
    ("copied", "finding"),
    [
        (["w.0", "w.1", "w.4", "w.8"], None),
        (["w.0", "w.1", "w.4"], "lacks {'w.8': 1}"),
        (["w.0", "w.1", "w.4", "w.8", "w.1"], "too much {'w.1': 1}"),
        (["w.0", "w.1", "w.8", "w.4"], "the copy: w.4 at .* is behind"),
    ],
)
def test_the_oracle_finds_what_is_wrong_in_a_copy(copied, finding):
    written = {at(offset): value for offset, value in enumerate(["w.0", "w.1", "w.4", "w.8"])}
    found = "\n".join(wrong_copy(written, {at(offset): value for offset, value in enumerate(copied)}))
    assert re.search(finding, found) if finding else not found
