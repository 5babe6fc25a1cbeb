"""Write the generated tables of all pages. With `--check`, only name the pages whose tables differ."""

import sys

from tests.reference_tables import PAGES, ROOT, all_tables, with_tables


def main(arguments: list[str]) -> int:
    if set(arguments) - {"--check"}:
        print("usage: python -m tests.reference_tables [--check]", file=sys.stderr)
        return 2
    tables = all_tables()
    differ = {path: new for path in PAGES if (new := with_tables(old := path.read_text(), tables)) != old}
    for path, text in differ.items():
        print(path.relative_to(ROOT))
        if not arguments:
            path.write_text(text)
    return int(bool(arguments and differ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
