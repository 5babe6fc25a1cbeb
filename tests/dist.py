"""The sdist and the wheel of a release: built twice, compared, and checked by the tools that packagers use.

python -m tests.dist

`dist/` has the files afterwards. The exit code is 1 if two builds differ, or a tool finds a fault.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TOOLS_DIRECTORY = ROOT / "target" / "dist-tools"
TOOLS = ("build", "twine", "check-wheel-contents", "pyroma", "validate-pyproject[all]", "hatchling")
# The sdist is what a distributor builds and tests from.
IN_SDIST = (
    "src/stablelog/__init__.py",
    "tests/conftest.py",
    "Makefile",
    "docs/guides/deploy.md",
    "bench/__main__.py",
)
# What pyroma asks for and the project cannot have before it has a home and authors.
PYROMA_LACKS = (
    "Your package does not have author data.",
    "Your package does not have author-email data.",
    "Your package should have a 'url' field with a link to the project home page",
)


def tools():
    """The directory with the programs of TOOLS. They are installed beside the project's own environment."""
    binaries = TOOLS_DIRECTORY / "bin"
    if not (binaries / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", TOOLS_DIRECTORY], check=True)
    subprocess.run(
        [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS],
        check=True,
    )
    return binaries


def build(binaries, directory):
    """Build the sdist, and the wheel from the sdist. Return name -> digest."""
    subprocess.run(
        [binaries / "python", "-m", "build", "--no-isolation", "--outdir", directory, ROOT],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"},
    )
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(directory).iterdir())
    }


def faults(binaries):
    """What the tools find, as lines."""
    (wheel,) = DIST.glob("*.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    yield from (f"the sdist lacks {name}" for name in IN_SDIST if name not in names)
    checks = (
        ("twine", "check", "--strict", wheel, sdist),
        # W009: pyspark_stablelog is a second package, by which PySpark finds the data source.
        ("check-wheel-contents", "--ignore", "W009", wheel),
        ("validate-pyproject", ROOT / "pyproject.toml"),
    )
    for program, *words in checks:
        done = subprocess.run([binaries / program, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            yield f"{program}: {done.stdout}{done.stderr}"
    done = subprocess.run([binaries / "pyroma", sdist], capture_output=True, text=True, check=False)
    asked = [line for line in done.stdout.splitlines() if line.startswith("Your") or "should" in line]
    for line in asked:
        if any(line.startswith(lack) for lack in PYROMA_LACKS):
            print(f"pyroma, left until there are any: {line}")
        else:
            yield f"pyroma: {line}"


def main():
    binaries = tools()
    shutil.rmtree(DIST, ignore_errors=True)
    first = build(binaries, DIST)
    with tempfile.TemporaryDirectory() as directory:
        second = build(binaries, directory)
    found = [f"two builds of {name} differ" for name, digest in first.items() if second[name] != digest]
    found += faults(binaries)
    for name, digest in first.items():
        print(f"dist/{name}  {(DIST / name).stat().st_size:,} bytes, SHA-256 {digest}")
    print(*found, sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
