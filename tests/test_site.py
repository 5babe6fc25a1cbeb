"""The web site of the documents: how it is made of them, what its checks find, and the built site."""

import json

import pytest

from tests import documented, site

PLACES = {"README.md": "about.md", "docs/README.md": "README.md", "docs/guides/size.md": "guides/size.md"}


def test_links_lead_to_the_pages_of_the_site():
    text = "[a](../../README.md) [b](../README.md#start) [c](size.md) [d](#here) [e](https://example.org/x)"
    assert site.with_links(text, "docs/guides/size.md", PLACES) == (
        "[a](../about.md) [b](../README.md#start) [c](size.md) [d](#here) [e](https://example.org/x)"
    )
    assert site.with_links('<img src="docs/README.md">', "README.md", PLACES) == '<img src="README.md">'


def test_a_link_to_what_is_no_page_is_refused():
    with pytest.raises(LookupError, match=r"docs/guides/size\.md links to \.\./\.\./src, which is no page"):
        site.with_links("[the code](../../src)", "docs/guides/size.md", PLACES)


def test_each_link_of_a_page_leads_to_a_page_of_the_site():
    assert {"README.md", "about.md", "contributing.md", "license.md"} <= site.sources().keys()


def test_items_of_lists_are_continued_at_four_columns():
    text = "1. one\n   goes on\n\n       code\n\n2. two\n   - inner\n     goes on\n\ntext\n"
    assert site.with_wide_lists(text) == (
        "1. one\n    goes on\n\n        code\n\n2. two\n    - inner\n        goes on\n\ntext\n"
    )


def test_each_page_is_once_in_the_navigation():
    home, *sections = site.navigation()
    listed = [
        one if isinstance(one, str) else next(iter(one.values()))
        for s in sections
        for p in s.values()
        for one in p
    ]
    listed += home.values()
    docs = [path.relative_to(documented.DOCS).as_posix() for path in documented.DOCS.rglob("*.md")]
    others = ["about.md", "decisions/README.md", "examples/README.md", "license.md"]
    others += [path.name.lower() for path in site.ROOT.glob("*.md") if path.name != "README.md"]
    assert sorted(listed) == sorted([*(one for one in docs if not one.startswith("decisions/")), *others])


@pytest.mark.parametrize(
    ("element", "found"),
    [
        ('<script src="https://cdn.example/a.js"></script>', "loads https://cdn.example/a.js from elsewhere"),
        ('<link rel="preconnect" href="//fonts.example">', "loads //fonts.example from elsewhere"),
        (
            '<source srcset="a.svg 1x, http://b.example/b.svg 2x">',
            "loads http://b.example/b.svg from elsewhere",
        ),
        ("<style>@import 'https://c.example/c.css';</style>", "loads https://c.example/c.css from elsewhere"),
        (
            '<p style="background: url(https://d.example/d.png)">',
            "loads https://d.example/d.png from elsewhere",
        ),
        ('<div class="mermaid">', "loads https:// what class mermaid needs from elsewhere"),
        ('<img src="gone.svg">', "loads gone.svg, which is missing"),
        ('<a href="gone.html">', "links to gone.html, which is missing"),
        ('<a href="other.html#gone">', "links to other.html#gone: the page has no such anchor"),
        ('<a href="#gone">', "links to #gone: the page has no such anchor"),
        ('<a href="folder">', "links to folder, which is missing"),
    ],
)
def test_a_fault_of_a_page_is_found(tmp_path, element, found):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.svg").touch()
    (tmp_path / "style.css").write_text("/* url(https://example.org) */ a { background: url(a.svg) }")
    (tmp_path / "other.html").write_text('<h2 id="here">')
    page = '<a href="other.html#here"><a href="https://example.org"><img src="data:x"><img src="a.svg">'
    (tmp_path / "page.html").write_text(page)
    assert list(site.faults(tmp_path)) == []
    (tmp_path / "page.html").write_text(page + element)
    (fault,) = site.faults(tmp_path)
    assert fault == f"page.html {found}"


def test_a_fault_of_a_style_sheet_is_found(tmp_path):
    (tmp_path / "page.html").touch()
    (tmp_path / "style.css").write_text('@font-face { src: url("https://fonts.example/f.woff2") }')
    assert list(site.faults(tmp_path)) == ["style.css loads https://fonts.example/f.woff2 from elsewhere"]


@pytest.mark.extended
def test_the_site_is_built_without_faults(tmp_path):
    program = site.installed() or pytest.skip("Zensical is not installed: `make site` installs it")
    assert site.build(program, tmp_path) == ""
    built = tmp_path / "site"
    assert [*site.faults(built), *site.differences(built)] == []

    index = json.loads((built / "search.json").read_text())
    found = {item["location"].partition("#")[0] for item in index["items"]}
    places = {path.relative_to(built).as_posix() for path in built.rglob("*.html")} - {"404.html"}
    assert places <= found | {"index.html"}

    pictures = site.Page((built / "start" / "transactions.html").read_text()).loads
    for name in ("open", "commit-order", "cut"):
        assert {f"{name}-light.svg", f"{name}-dark.svg"} <= set(pictures)
