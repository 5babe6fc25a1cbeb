"""The rows of `stablelog doctor`."""

from tests.advice.steps import command, row


def diagnosis(words):
    """A diagnosis. What it finds about the machine of the tests, such as a small disk, does not count."""
    diagnose = command(words)
    return lambda user: diagnose(user)._replace(is_done=True)


DOCTOR = [
    row(
        "Name the data directory of the broker by --data",
        command("doctor --data $path/missing"),
        diagnosis("doctor --data $data --json"),
        seen='"lock": "held"',
    ),
]
