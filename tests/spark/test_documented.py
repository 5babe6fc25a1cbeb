"""The quick start of docs/guides/spark.md and the stream of README.md run as they are printed."""

import re
import textwrap
from pathlib import Path

import pytest

import stablelog
from stablelog.testing.topics import create_topic
from tests import documented
from tests.spark.starting import in_time

pytestmark = [pytest.mark.spark, pytest.mark.extended]
ROOT = Path(__file__).parents[2]
RECORD_COUNT = 5


def programs():
    """By document: its program, and the topic that the program copies to the topic `copies`."""
    quick_start = re.findall(r"```python\n(.*?)```", documented.page("spark.md"), re.S)[0]
    (indented,) = re.findall(
        r"^    import stablelog\n(?:    .*\n|\n)+", (ROOT / "README.md").read_text(), re.M
    )
    return {"spark.md": (quick_start, "orders"), "README.md": (textwrap.dedent(indented), "greetings")}


@pytest.fixture(scope="module")
def broker():
    """A broker of this module: the topics of the documents are also written by other tests."""
    with stablelog.serve() as started:
        yield started


@pytest.mark.parametrize("document", programs())
def test_the_printed_program_copies_each_record_once(spark, broker, document, tmp_path):
    program, topic = programs()[document]
    assert len([line for line in program.splitlines() if line]) <= 10
    bootstrap = broker.bootstrap
    target = f"copies-{topic}"
    places = {"127.0.0.1:9092": bootstrap, '"copies"': f'"{target}"', '"checkpoint"': f'"{tmp_path}"'}
    for printed, here in places.items():
        assert printed in program
        program = program.replace(printed, here)
    for name in (topic, target):
        create_topic(bootstrap, name, 1, {})
    with stablelog.connect(bootstrap).transaction() as txn:
        for number in range(RECORD_COUNT):
            txn.write(topic, str(number), key=str(number))
    for _ in range(2):  # the second run finds everything copied
        in_time(lambda: exec(program, {}))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": target}
    rows = in_time(lambda: spark.read.format("stablelog").options(**options).load().collect())
    assert sorted(row.value for row in rows) == [str(number).encode() for number in range(RECORD_COUNT)]
