"""The names of the parts of `make night`."""

import textwrap

from tests.night import PARTS


def tables() -> dict[str, str]:
    names = ", ".join(f"`{part.name}`" for part in PARTS)
    return {"night": textwrap.fill(names, 120, break_on_hyphens=False) + "\n"}
