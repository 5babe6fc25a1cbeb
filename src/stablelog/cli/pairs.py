"""Settings in the form name=value."""

from stablelog.errors import UsageError


def split_pair(text: str) -> tuple[str, str]:
    """Split the text `name=value` of a setting at its first `=`, and return the name and the value.

    Raises:
        UsageError: the text contains no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise UsageError(f"{text!r} is not a setting: write name=value")
    return name.strip(), value.strip()
