"""A process that copies topics exactly once, as Kafka's TransactionalMessageCopier does: the programs of docs/reference/client.md.

python -m tests.client.copier BOOTSTRAP SOURCE TARGET GROUP threads|asyncio
"""

import sys

from tests import documented

PROGRAMS = documented.take("python-service.md", "client.subscribe(", "offsets_of=reader")
TIMEOUT_S = 3  # of transactions: a killed copier holds the offsets back for so long


def program(bootstrap, source, target, group, face):
    """The program of the page, with these names."""
    (found,) = (text for text in PROGRAMS if ("asyncio" in text) == (face == "asyncio"))
    for old, new in (
        ('"localhost:9092"', repr(bootstrap)),
        ('"orders"', repr(source)),
        ('"copies"', repr(target)),
        ('"copier"', repr(group)),
        ("max_records=500", "max_records=50"),
        ("offsets_of=reader", f"offsets_of=reader, timeout={TIMEOUT_S}"),
    ):
        assert old in found, old
        found = found.replace(old, new)
    return found


if __name__ == "__main__":
    exec(program(*sys.argv[1:]))
