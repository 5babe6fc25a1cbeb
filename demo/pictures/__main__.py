"""`make picture`: write each picture twice, for light and for dark pages."""

import argparse
import sys
from pathlib import Path

import stablelog
from demo.pictures import commit_order, cut, open_transaction, partition
from demo.pictures.pen import PALETTES
from demo.pictures.writers import Writers

PICTURES = {
    "partition": partition,
    "open": open_transaction,
    "commit-order": commit_order,
    "cut": cut,
}


def main() -> int:
    """Write the pictures into a directory."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.pictures", description="The pictures of the documents."
    )
    parser.add_argument("--to", type=Path, default=Path("docs/start"), help="where to; docs/start")
    directory = parser.parse_args().to
    for name, picture in PICTURES.items():
        with stablelog.serve() as broker, Writers(broker) as writers:  # Each begins with commit 1.
            found = picture.play(writers)
        for palette in PALETTES:
            path = directory / f"{name}-{palette.name}.svg"
            path.write_text(picture.draw(palette, found))
            print(path)  # noqa: T201 - the output of the command
    return 0


if __name__ == "__main__":
    sys.exit(main())
