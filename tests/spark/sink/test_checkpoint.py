"""What is read of Spark's checkpoint."""

import json

import pytest

from stablelog.errors import UnavailableError, UsageError
from stablelog.spark.sink.checkpoint import plan_digest, progress


def write_offsets(tmp_path, *lines):
    (tmp_path / "offsets").mkdir(exist_ok=True)
    (tmp_path / "offsets" / "3").write_text("\n".join(["v1", "{}", *lines]))


def test_progress_is_read_from_the_checkpoint(tmp_path):
    write_offsets(
        tmp_path,
        json.dumps({"a": {"0": 5, "1": 6}, "#topics": {"a": "id"}}),
        "-",
        '{"version":1,"seconds":4}',
        json.dumps({"a": {"1": 4}, "b": {"0": 1}}),
        "17",
    )
    for checkpoint in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        assert progress(checkpoint, 3) == {("a", 0): 5, ("a", 1): 4, ("b", 0): 1}


@pytest.mark.parametrize("name", ["a%20b", "a#b", "a?b", "a:b"])
def test_a_checkpoint_is_where_its_name_says(tmp_path, name):
    (tmp_path / name).mkdir()
    write_offsets(tmp_path / name, json.dumps({"a": {"0": 5}}))
    for checkpoint in (f"{tmp_path}/{name}", f"file:{tmp_path}/{name}", f"file://{tmp_path}/{name}"):
        assert progress(checkpoint, 3) == {("a", 0): 5}


def test_progress_that_cannot_be_known_is_said(tmp_path):
    write_offsets(tmp_path, "-")
    with pytest.raises(UsageError, match="reads no topic"):
        progress(str(tmp_path), 3)
    with pytest.raises(UnavailableError, match="cannot be read"):
        progress(str(tmp_path), 4)
    (tmp_path / "offsets" / "5").write_text("v9\n{}")
    with pytest.raises(UnavailableError, match="and not with v1"):
        progress(str(tmp_path), 5)


def test_the_digest_of_a_plan_is_that_of_its_sources_offsets(tmp_path):
    write_offsets(tmp_path, '{"b":{"1":1},"a":{"0":5}}', "-")
    digest = plan_digest(str(tmp_path), 3)
    assert 0 < len(digest) <= 100
    path = tmp_path / "offsets" / "3"
    path.write_text(path.read_text().replace('{"b":{"1":1},"a":{"0":5}}', '{"a": {"0": 5}, "b": {"1": 1}}'))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"batchTimestampMs":99}', *lines[2:]]))  # planned at another time
    assert plan_digest(str(tmp_path), 3) == digest
    path.write_text(path.read_text().replace('"0": 5', '"0": 6'))
    assert plan_digest(str(tmp_path), 3) not in ("", digest)
    # What offsets of other kinds mean is not known: one plan is not another.
    digests = set()
    for time in (1, 2):
        path.write_text(f'v1\n{{"batchTimestampMs":{time}}}\n{{"logOffset":1}}\n{{"a":{{"0":5}}}}')
        digests.add(plan_digest(str(tmp_path), 3))
    assert len(digests - {""}) == 2
    for checkpoint in (None, "s3://b/c", str(tmp_path / "elsewhere")):
        assert plan_digest(checkpoint, 3) == ""


def test_the_digest_knows_topics_by_their_ids_and_no_cut(tmp_path):
    def digest(**more):
        write_offsets(tmp_path, json.dumps({"a": {"0": 5}, **more}))
        return plan_digest(str(tmp_path), 3)

    assert digest() == digest(**{"#cut": {"commitSequence": 4, "group": ""}})
    assert digest(**{"#topics": {"a": "id"}}) not in (digest(), digest(**{"#topics": {"a": "another"}}))
