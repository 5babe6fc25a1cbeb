"""The story of the small pictures: four transactions of two records each. B begins early and commits last; D aborts."""

from demo.pictures.writers import Writers

TOPIC = "orders"
NAMES = "ABCD"


def begin(writers: Writers, **configs: str) -> None:
    """Write A, C and D to their ends. B is open then."""
    writers.create(TOPIC, **configs)
    for name, values in (("A", (b"A1", b"A2")), ("B", (b"B1",)), ("C", (b"C1", b"C2"))):
        for value in values:
            writers.write(name, TOPIC, [value])
        if name == "A":
            writers.end(name)
    writers.write("B", TOPIC, [b"B2"])
    writers.end("C")
    writers.write("D", TOPIC, [b"D1"])
    writers.end("D", is_committed=False)
