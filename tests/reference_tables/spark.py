"""The tables of the options of `format("stablelog")`."""

from collections.abc import Iterator
from itertools import groupby

from stablelog.spark.kafka_settings import REFUSED, WITHOUT_EFFECT
from stablelog.spark.option_table import OPTIONS
from tests.reference_tables import table

# The name of each table of options, and the first option in it. The tables have the order of OPTIONS.
FIRST = {
    "spark-options-of-the-log": "kafka.bootstrap.servers",
    "spark-options-of-bounds": "startingOffsets",
    "spark-options-of-cuts": "cut",
    "spark-options-of-a-read": "isolation",
    "spark-options-of-a-micro-batch": "maxOffsetsPerTrigger",
    "spark-options-of-a-write": "topic",
    "spark-options-of-the-connection": "kafka.client.id",
}


SHORT = {"batch, stream, write": "all", "batch, stream": "read"}


def reads_and_writes(where: str) -> str:
    """The reads and writes of an option, as its row says them."""
    return SHORT.get(where, where)


def _options(names: list[str]) -> str:
    rows = (
        (
            f"`{name}`",
            option.otherwise or option.default,
            option.kind.valid,
            reads_and_writes(option.where),
            option.meaning,
        )
        for name in names
        for option in [OPTIONS[name]]
    )
    return table(("option", "default", "takes", "for", "meaning"), rows)


def _reasons() -> Iterator[tuple[str, str]]:
    """Each reason for which options have no effect, and the options."""
    for reason, names in groupby(WITHOUT_EFFECT, WITHOUT_EFFECT.__getitem__):
        yield reason, ", ".join(f"`{name}`" for name in names)


def tables() -> dict[str, str]:
    names = list(OPTIONS)
    begins = [names.index(first) for first in FIRST.values()]
    ends = [*begins[1:], len(names)]
    refused = ((f"`{name}`", instead) for name, instead in REFUSED.items())
    return {
        **{title: _options(names[begin:end]) for title, begin, end in zip(FIRST, begins, ends, strict=True)},
        "spark-options-without-effect": table(("why it has no effect", "options"), _reasons()),
        "spark-options-refused": table(("setting", "what to do"), refused),
    }
