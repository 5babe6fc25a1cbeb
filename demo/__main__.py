"""`make demo`, `make demo-cuts` and `make demo-tiers`: which scene, how much of it, and where to."""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from demo.busy import EXIT_CODE, LateError, is_busy, is_late, too_busy
from demo.children import Children


def main() -> int:
    """Play a scene.

    Returns:
        0 if it has shown what it is to show; 75 if the machine was too busy for it; 1 if it has failed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Flights through the log.",
        epilog=f"Exit codes: 0 if the scene has shown it, 1 if it has failed, {EXIT_CODE} if the machine was too busy for it.",
    )
    parser.add_argument(
        "scene",
        nargs="?",
        choices=("crashes", "cuts", "tiers"),
        default="crashes",
        help="crashes: nothing is lost, whatever is killed (the default); "
        "cuts: an open transaction delays nobody, and none is seen in pieces; "
        "tiers: reads across an object store, and a restore after the loss of the disk",
    )
    parser.add_argument("--rows", type=int, help="only the first rows of the file")
    parser.add_argument(
        "--data",
        type=Path,
        help="a new or empty directory to keep everything in; a temporary one if not given",
    )
    parser.add_argument(
        "--picture", type=Path, help="where the picture goes; flights.svg, cuts.svg or tiers.svg"
    )
    arguments = parser.parse_args()
    if arguments.rows is not None and arguments.rows < 1:
        parser.error("--rows: at least 1")
    if arguments.data is not None:
        arguments.data.mkdir(parents=True, exist_ok=True)
        if any(arguments.data.iterdir()):  # topics and checkpoints of an earlier run would not fit this one
            parser.error(f"--data: {arguments.data} is not empty")
    if arguments.scene == "crashes":
        from demo.crashes.scene import play

        picture = arguments.picture or Path("flights.svg")
    elif arguments.scene == "cuts":
        from demo.cuts.scene import play

        picture = arguments.picture or Path("cuts.svg")
    else:
        from demo.tiers.scene import play

        picture = arguments.picture or Path("tiers.svg")
    console = Console()
    began = time.monotonic()
    with Children() as children:
        home = arguments.data or Path(tempfile.mkdtemp(prefix="stablelog-demo-"))
        try:
            ok = play(console, children, home / "data", arguments.rows, picture)
        except (Exception, LateError) as error:
            if not (is_late(error) and is_busy()):
                raise
            console.print(
                f"  {too_busy(error)}", style="yellow", highlight=False, markup=False, soft_wrap=True
            )
            return EXIT_CODE
        finally:
            if arguments.data is None:
                shutil.rmtree(home, ignore_errors=True)
    console.print(
        f"  done in {time.monotonic() - began:.0f} s on {machine()}; the picture is in {picture}",
        highlight=False,
        soft_wrap=True,
    )
    return 0 if ok else 1


def machine() -> str:
    """Return the machine in a few words."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
