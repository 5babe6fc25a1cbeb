"""Whether the disk of temporary files has space for the tests.

On a full disk a broker refuses writes with codes that clients retry, so each test would wait until its timeout.
"""

import shutil
import tempfile

MIB_MIN = 512


def why_too_little():
    """Return why the tests cannot go on; None if there is enough space."""
    directory = tempfile.gettempdir()
    mib = shutil.disk_usage(directory).free >> 20
    if mib >= MIB_MIN:
        return None
    return (
        f"{directory} has {mib} MiB of free space, and tests need {MIB_MIN} MiB: remove files, or set TMPDIR"
    )
