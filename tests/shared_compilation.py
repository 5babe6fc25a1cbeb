"""Each worker of pytest-xdist compiles a part of the test modules, and reads from the others' bytecode what they compiled.

All workers collect all modules in the same order. Without this, each worker of a fresh checkout would compile every module,
because all of them come to it at the same time: half a minute of processor time for each worker.
"""

import contextlib
import importlib

import pytest


def import_part(paths, root, worker):
    """Import the modules that this worker compiles; pytest finds them imported when it collects them.

    Args:
        paths: of all test modules that the workers will collect.
        root: the directory of the checkout.
        worker: `config.workerinput` of pytest-xdist.
    """
    for path in part(sorted(paths), worker["workerid"], worker["workercount"]):
        # Collecting the module repeats the error, and reports it.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def part(paths, worker_id, count):
    """Return every so many of the paths; those of all workers together are all paths.

    Args:
        paths: a list.
        worker_id: "gw0" for the first worker.
        count: the number of workers.
    """
    return paths[int(worker_id.removeprefix("gw")) % count :: count]
