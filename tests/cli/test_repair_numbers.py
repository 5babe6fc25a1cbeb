"""`stablelog repair` of commit logs: no producer id is given out twice."""

import asyncio
import shutil

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.producer_ids import BLOCK_SIZE
from stablelog.data_directory.checkpoints import RECOVERY_POINT_CHECKPOINT
from stablelog.env.local_disk import LocalDisk
from tests.broker import desk
from tests.broker.desk import Gate, batch, init_fields
from tests.cli.test_repair import LOG, flip, positions, run, run_on_terminal

COMMIT_LOG = "__transaction_state-0"


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data directory for brokers without a socket."""
    monkeypatch.setattr(desk, "DATA", tmp_path / "data")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


async def new_producer(broker):
    answer = await broker.ask(22, 4, **init_fields(4, None))
    assert answer.error_code is ErrorCode.none
    return answer.producer_id, answer.producer_epoch


def give_out(count, *, writing, group=None):
    """Start a broker, give out so many producer ids, and let the first of them write to t; returns the ids.

    A transaction of the group `group` is begun first.
    """

    async def run_broker():
        async with desk.opened(LocalDisk(), partitions=1) as broker:
            if group is not None:
                broker.broker.topic_files.create("grouped", 1, {"stablelog.group": group})
                producer = await broker.init(f"{group}/x")
                assert await broker.add(f"{group}/x", producer, ("grouped", 0)) == [ErrorCode.none]
            producers = [await new_producer(broker) for _ in range(count)]
            for producer in producers[:writing]:
                written = batch(b"old", producer=producer, sequence=0, transactional=False)
                assert (await broker.produce(written)).error_code is ErrorCode.none
            await broker.durable()
            return [producer_id for producer_id, _ in producers]

    return asyncio.run(run_broker())


def write_with_a_new_producer():
    """Start a broker, ask for a producer id while t is still opening, and write with it; returns the id and what t holds."""

    async def run_broker():
        gate = Gate("t")
        async with desk.opened(LocalDisk(), partitions=1, gate=gate) as broker:
            producer = await new_producer(broker)
            gate.open()
            await broker.opened("t")
            written = batch(b"new", producer=producer, sequence=0, transactional=False)
            assert (await broker.produce(written)).error_code is ErrorCode.none
            await broker.durable()
            return producer[0], broker.values("t")

    return asyncio.run(run_broker())


@pytest.mark.parametrize("writing", [0, 2, 3])
def test_after_a_commit_log_was_cut_no_producer_id_is_given_out_twice(data, writing):
    given = give_out(3, writing=writing)
    path = data / COMMIT_LOG / LOG
    flip(path, positions(path)[0] + 30)
    result = run("repair", data, "--yes")
    assert result.exit_code == 0, result.output
    assert "new producer ids begin at" in result.output
    producer_id, values = write_with_a_new_producer()
    assert producer_id not in given
    assert values == [b"old"] * writing + [b"new"]
    assert run("verify", data).exit_code == 0
    assert "A record is added" not in run("repair", data, "--yes").output


@pytest.mark.extended
def test_a_client_may_hold_an_id_of_the_last_block_that_it_has_not_written_with(data):
    given = give_out(BLOCK_SIZE + 1, writing=BLOCK_SIZE)
    assert given[-1] == BLOCK_SIZE
    path = data / COMMIT_LOG / LOG
    for position in positions(path):
        flip(path, position + 30)
    run("repair", data, "--yes")
    assert write_with_a_new_producer()[0] > given[-1]


def test_repair_raises_the_producer_ids_of_a_commit_log_from_an_older_backup(data, tmp_path):
    give_out(0, writing=0)
    shutil.copytree(data / COMMIT_LOG, tmp_path / "older")
    given = give_out(3, writing=3)
    shutil.rmtree(data / COMMIT_LOG)
    shutil.copytree(tmp_path / "older", data / COMMIT_LOG)
    (data / RECOVERY_POINT_CHECKPOINT).unlink()
    result = run("repair", data, "--yes")
    assert "contains producer ids below 0, and ids below 3 were given out" in result.output
    producer_id, values = write_with_a_new_producer()
    assert producer_id not in given
    assert values == [b"old"] * 3 + [b"new"]


def test_a_commit_log_that_is_named_alone_is_held_against_all_commit_logs(data):
    give_out(3, writing=3, group="a")
    for name in ("__transaction_state.a-0", COMMIT_LOG):
        result = run("repair", data / name, "--yes")
        assert (result.exit_code, "A record is added" in result.output) == (0, False), result.output


def contents(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("is_torn", [False, True])
def test_repair_writes_nothing_to_a_commit_log_that_it_cannot_examine(data, is_torn):
    give_out(3, writing=3)
    path = data / COMMIT_LOG / LOG
    path.write_bytes(path.read_bytes()[:70] if is_torn else b"")
    (data / COMMIT_LOG / "log-start-offset").write_text("garbage")
    before = contents(data)
    result = run("repair", data, "--yes")
    assert result.exit_code == 1, result.output
    assert f"{COMMIT_LOG}: cannot be repaired" in result.output
    assert "A record is added" not in result.output
    assert contents(data) == before


@pytest.mark.parametrize("failing", [0, 1])
def test_repair_writes_nothing_to_a_commit_log_of_which_it_cannot_examine_a_part(data, failing):
    give_out(3, writing=3)
    shutil.copytree(data / COMMIT_LOG, data / "__transaction_state-1")
    for index in range(2):
        (data / f"__transaction_state-{index}" / LOG).write_bytes(b"")
    (data / f"__transaction_state-{failing}" / "log-start-offset").write_text("garbage")
    result = run("repair", data, "--yes")
    assert result.exit_code == 1, result.output
    assert (
        f"nothing is added to the commit log of the default transaction group, because __transaction_state-{failing}"
        in (result.output)
    )
    assert "A record is added" not in result.output
    for index in range(2):
        assert (data / f"__transaction_state-{index}" / LOG).read_bytes() == b""


@pytest.mark.extended
@pytest.mark.parametrize("declined", ["t-0", COMMIT_LOG])
def test_only_a_commit_log_whose_cut_is_declined_gets_no_record(data, declined):
    give_out(3, writing=3)
    paths = {name: data / name / LOG for name in (COMMIT_LOG, "t-0")}
    for path in paths.values():
        flip(path, positions(path)[0] + 30)
    before = paths[declined].read_bytes()
    cut = b"".join(b"n\n" if name == declined else b"y\n" for name in paths)
    code, output = run_on_terminal(data, cut + b"y\n")  # the record may be added
    assert code == 1, output  # damage is left
    assert paths[declined].read_bytes() == before
    assert (b"A record is added" in output) == (declined != COMMIT_LOG)
