"""The table of the rights that requests need."""

from tests.declared_apis import RIGHTS
from tests.reference_tables import table


def tables() -> dict[str, str]:
    """A row for each API, with a line for each right: the operation, the resource, and what a client without it gets."""
    rows = []
    for api, rights in RIGHTS.items():
        lines = [
            f"{right.operation.name} {right.of}{f' ({right.without})' if right.without else ''}"
            for right in rights or ()
        ]
        rows.append((api.message_name, "<br>".join(lines) or "none"))
    return {"rights": table(("API", "rights"), rows)}
