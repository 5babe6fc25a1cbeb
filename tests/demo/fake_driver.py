"""A Spark driver that copies ten rows, one in each batch, from its checkpoint on. One waits after four rows for its end.

In the directory of the checkpoint, `failures` says how many drivers still fail, and `code` with which exit code.
"""

import os
import sys
import time
from pathlib import Path

ROW_COUNT, WAITS_AT, FAILS_AT = 10, 4, 2
# As Spark writes it: the cause is between long stacks.
STACK = "".join(f"\tat org.apache.spark.util.ClosureCleaner.clean(line {number})\n" for number in range(200))
ERROR = (
    f"StreamingQueryException: Task not serializable\n{STACK}Caused by: java.io.IOException: [why]\n{STACK}"
)


def fail(code: int) -> None:
    sys.stderr.write(ERROR)
    sys.stderr.flush()
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def copy(directory: Path) -> None:
    failures, code, rows = (directory / name for name in ("failures", "code", "rows"))
    for row in range(int(rows.read_text()) + 1, ROW_COUNT + 1):
        rows.write_text(str(row))
        sys.stdout.write("batch 1\n")
        sys.stdout.flush()
        if row == WAITS_AT:
            time.sleep(600)
        left = int(failures.read_text())
        if row >= FAILS_AT and left:
            failures.write_text(str(left - 1))
            fail(int(code.read_text()))


if __name__ == "__main__" and sys.stdin.readline():
    copy(Path(sys.argv[2]).parent)
