"""Files of settings in Kafka's form."""

from pathlib import Path

from stablelog.cli.pairs import split_pair
from stablelog.errors import UsageError


def read_properties(path: Path) -> dict[str, str]:
    """Read a file of settings in Kafka's form: name=value on each line, and comments after #. Return the values by
    name.

    Raises:
        UsageError: the file is missing, or a line is not a setting.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not a text file: a file of settings has name=value on each line"
        ) from error
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            if "=" not in line:  # the message does not quote the line, because it may be a part of a secret
                raise UsageError(f"{path}, line {number}, is not a setting: write name=value")
            name, value = split_pair(line)
            found[name] = value
    return found
