"""The documents as a web site: built by Zensical in `target/site`, and checked.

python -m tests.site

The pages of docs/ keep their places, and docs/README.md is the home page. Each file or folder outside docs/ to which a page
links is a page too: `pages` lists them. Links are changed in the copy that Zensical reads, so that they lead to these
pages. The exit code is 1 if a check finds a fault.
"""

import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "target"
TOOLS_DIRECTORY = TARGET / "site-tools"
MAP = "docs/README.md"
KINDS = ("Start", "Guides", "Reference", "How it works")
# Beside docs/ and examples/, each Markdown file in the root is a page, and the license. README.md is another one than that
# of docs/, which is the home page.
ROOT_PAGES = {"README.md": "about.md", "LICENSE": "license.md"}
# The colours follow the system's, as the pictures do. The fonts are the system's: the theme loads its own from Google.
SETTINGS = """[project]
site_name = "stablelog"
docs_dir = "site-source"
site_dir = "site"
use_directory_urls = false
nav = {nav}

[project.theme]
font = false
features = ["navigation.indexes", "navigation.sections", "search.highlight"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
"""
LINK = re.compile(r'(?<=\]\()([^)#\s]+)(?=[)#])|(?<=src=")([^"]+)(?=")|(?<=srcset=")([^"]+)(?=")')
ITEM = re.compile(r"(?:[-*]|\d+\.) +")
COMMON_MARK = MarkdownIt("commonmark").enable("table")


def pages():
    """Each file of the repository that is a page or picture of the site: {path: its path in the site's source}."""
    found = {path.name: path.name.lower() for path in sorted(ROOT.glob("*.md"))} | ROOT_PAGES
    for path in sorted([*(ROOT / "docs").rglob("*"), *(ROOT / "examples").rglob("*.md")]):
        if path.suffix in (".md", ".svg", ".png"):
            name = path.relative_to(ROOT).as_posix()
            found[name] = name.removeprefix("docs/")
    return found


def folders():
    """Each folder with a page that shows or lists its files: {path: the path of this page in the site's source}."""
    examples = [
        path for path in (ROOT / "examples").rglob("*") if path.is_dir() and path.name != "__pycache__"
    ]
    names = [path.relative_to(ROOT).as_posix() for path in (ROOT / "examples", *sorted(examples))]
    found = {name: f"{name}/README.md" for name in names}
    return found | {"docs/decisions": "decisions/README.md"}


def folder_page(folder):
    """The page of a folder: its README.md or its title, links to its Markdown pages, and the text of its programs."""
    readme = ROOT / folder / "README.md"
    text = readme.read_text() if readme.exists() else f"# {Path(folder).name.capitalize()}\n"
    for path in sorted((ROOT / folder).iterdir()):
        if path.suffix == ".md" and path != readme:
            title = path.read_text().partition("\n")[0].removeprefix("# ")
            text += f"\n- [{title}]({path.name})"
        elif path.suffix in (".py", ".yml", ".conf") and path.stat().st_size:
            text += f"\n## `{path.name}`\n\n```{path.suffix[1:]}\n{path.read_text().rstrip()}\n```\n"
    return text


def with_links(text, name, places):
    """The text of a file with links that lead from its page in the site to other pages.

    Raises:
        LookupError: A link leads to what is no page.
    """
    here = posixpath.dirname(places[name])

    def changed(match):
        link = match.group()
        if urlsplit(link).scheme:
            return link
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
        if target not in places:
            raise LookupError(
                f"{name} links to {link}, which is no page of the site: add it to tests/site.py"
            )
        return posixpath.relpath(places[target], here or ".")

    return LINK.sub(changed, text)


def with_wide_lists(text):
    """The text with each item of a list continued at four columns, as Zensical reads it. CommonMark needs fewer."""
    lines = text.split("\n")
    wider = [0] * len(lines)
    for token in COMMON_MARK.parse(text):
        if token.type == "list_item_open":
            first, end = token.map
            marker = len(ITEM.match(lines[first].lstrip()).group())
            begin = len(lines[first]) - len(lines[first].lstrip()) + marker
            for at in range(first + 1, end):
                if lines[at].startswith(" " * begin):
                    wider[at] += 4 - marker
    return "\n".join(" " * count + line for count, line in zip(wider, lines, strict=True))


def navigation():
    """The navigation: the home page, the pages of each kind in the order of the map, and those about the project."""
    text = (ROOT / MAP).read_text()
    nav = [{"Documents": "README.md"}]
    for kind in KINDS:
        section = text.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
        listed = re.findall(r"\]\(([\w/.-]+\.md)\)", section)
        nav.append({kind: [link for link in listed if not link.startswith("../")]})
    titles = {"README": "about.md", "Decisions": "decisions/README.md", "Examples": "examples/README.md"}
    others = sorted({path.name.lower() for path in ROOT.glob("*.md")} - {"readme.md"})
    nav.append({"Project": [*({title: path} for title, path in titles.items()), *others, "license.md"]})
    return nav


def sources():
    """Each file of the site's source: {path: its text with links to other pages, or the picture to copy}."""
    files, of_folders = pages(), folders()
    for name in of_folders:
        files.pop(f"{name}/README.md", None)
    places = files | of_folders
    found = {}
    for name, place in places.items():
        if name in of_folders:
            inside = f"{name}/README.md"
            found[place] = with_links(folder_page(name), inside, {**places, inside: place})
        elif name == "LICENSE":
            found[place] = f"# License\n\n```text\n{(ROOT / name).read_text()}```\n"
        elif place.endswith(".md"):
            found[place] = with_links((ROOT / name).read_text(), name, places)
        else:
            found[place] = ROOT / name
    return found


def write_source(directory):
    """Write Zensical's settings and the source of the site below a directory."""
    source = directory / "site-source"
    shutil.rmtree(source, ignore_errors=True)
    for place, found in sources().items():
        path = source / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(found, Path):
            shutil.copy(found, path)
        else:
            path.write_text(with_wide_lists(found))
    settings = SETTINGS.format(nav=json.dumps(navigation()).replace('": ', '" = '))
    (directory / "zensical.toml").write_text(settings)


def build(program, directory):
    """Build the site in `directory`/site. Return what Zensical wrote if it failed, else an empty text."""
    write_source(directory)
    shutil.rmtree(directory / "site", ignore_errors=True)
    words = [program, "build", "--strict", "--clean", "-f", directory / "zensical.toml"]
    plain = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=directory, env=plain)
    return done.stdout + done.stderr if done.returncode else ""


class Page(HTMLParser):
    """What a built page has: `anchors`, `links` that a reader follows, `loads` that a browser gets, and `count` of tags."""

    # What the theme's script would load from elsewhere if a page had an element of such a class.
    LOADING_CLASSES = frozenset({"mermaid", "glightbox", "pyodide"})

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads, self.count = set(), [], [], {}
        self._style = self._article = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        of = dict(attrs)
        self._style = tag == "style"
        self._article = self._article or tag == "article"
        if self._article:
            self.count[tag] = self.count.get(tag, 0) + 1
        self.anchors.update(of[name] for name in ("id", "name") if of.get(name))
        if tag in ("a", "area"):
            self.links += [of["href"]] if of.get("href") else []
        elif tag in ("link", "use", "image") and of.get("href"):
            self.loads.append(of["href"])
        self.loads += [of[name] for name in ("src", "data", "poster") if of.get(name)]
        self.loads += [one.split()[0] for one in of.get("srcset", "").split(",") if one.strip()]
        self.loads += loads_of_css(of.get("style") or "")
        for name in self.LOADING_CLASSES & set((of.get("class") or "").split()):
            self.loads.append(f"https:// what class {name} needs")

    def handle_endtag(self, tag):
        self._style = False
        if tag == "article":
            self._article = False

    def handle_data(self, data):
        if self._style:
            self.loads += loads_of_css(data)


def loads_of_css(text):
    """What a style sheet makes a browser load. Comments are left out, and so are pictures that stand in the text."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    found = re.findall(r"""url\(\s*["']?(.*?)["']?\s*\)|@import\s+["'](.*?)["']""", text)
    return [one for pair in found for one in pair if one and not one.startswith("data:")]


def faults(site):
    """What is wrong with the built site, as lines: foreign requests, files and anchors that are missing."""
    built = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    sheets = {path: loads_of_css(path.read_text()) for path in sorted(site.rglob("*.css"))}
    loads = [(path, load) for path, page in built.items() for load in page.loads]
    loads += [(path, load) for path, found in sheets.items() for load in found]
    if not built or not sheets:
        yield f"{site} has no pages or no style sheets"
    for path, load in loads:
        place = path.relative_to(site)
        if re.match(r"(?:[a-z]+:)?//", load):
            yield f"{place} loads {load} from elsewhere"
        elif not load.startswith("data:") and not target_of(site, path, load).is_file():
            yield f"{place} loads {load}, which is missing"
    for path, page in built.items():
        place = path.relative_to(site)
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = target_of(site, path, parts.path) if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{place} links to {link}, which is missing"
            elif parts.fragment and target in built and unquote(parts.fragment) not in built[target].anchors:
                yield f"{place} links to {link}: the page has no such anchor"


def target_of(site, page, link):
    """The file to which a link of a page leads. A link from / leads from the root of the site."""
    path = unquote(urlsplit(link).path)
    return Path(os.path.normpath(site / path[1:] if path.startswith("/") else page.parent / path))


def differences(site):
    """What the built pages show otherwise than CommonMark, for which they are written: lists, tables and blocks of code."""
    for place, text in sources().items():
        if place.endswith(".md"):
            of = site / place
            of = of.with_name("index.html") if of.name == "README.md" else of.with_suffix(".html")
            shown = Page(of.read_text()).count
            meant = Page(f"<article>{COMMON_MARK.render(text)}</article>").count
            for tag in ("h2", "li", "pre", "tr"):
                if shown.get(tag, 0) != meant.get(tag, 0):
                    yield f"{place}: the site shows {shown.get(tag, 0)} <{tag}>, CommonMark {meant.get(tag, 0)}"


def tools():
    """Zensical's program, installed beside the project's own environment as the extra `site` of pyproject.toml names it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    binaries = TOOLS_DIRECTORY / "bin"
    if not (binaries / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", TOOLS_DIRECTORY], check=True)
    install = [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *extras["site"]], check=True)
    return binaries / "zensical"


def installed():
    """Zensical's program: of this environment, or as `make site` has installed it. None if neither has it."""
    paths = Path(sys.executable).with_name("zensical"), TOOLS_DIRECTORY / "bin" / "zensical"
    return next((path for path in paths if path.exists()), None)


def main():
    failed = build(tools(), TARGET)
    found = [failed] if failed else [*faults(TARGET / "site"), *differences(TARGET / "site")]
    for line in found:
        print(line)
    if not found:
        print("target/site has the site. Show it with: python -m http.server --directory target/site")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
