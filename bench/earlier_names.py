"""Names of before: a measurement of two commits runs the same benchmark on both, and the older one may have other names."""

from typing import Any


def either(owner: object, name: str, earlier: str) -> Any:
    """Return the attribute `name` of an object or a module; the attribute `earlier` in a commit that has no `name`."""
    return getattr(owner, name if hasattr(owner, name) else earlier)
