"""The site: its pages and links come from the repository, and the check finds what is wrong with it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import xbridge

hooks = pytest.importorskip("site_hooks", reason="needs MkDocs", exc_type=ImportError)
check = pytest.importorskip("site_check", reason="needs Playwright", exc_type=ImportError)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = next(filter(None, map(shutil.which, check.BROWSERS)), None)
needs_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


# -- the pages ------------------------------------------------------------------------------------


def test_site_reference__has_a_page_per_public_name() -> None:
    """Each public name has a page, and errors link to the index of errors."""
    names = [name for found in hooks.reference().values() for name in found]
    assert sorted(name for name in names if "." not in name) == sorted(
        name for name in xbridge.__all__ if not name.endswith(("Error", "Warning"))
    )
    assert {"tree.map", "testing.assert_same", "testing.strategies.arrays"} < {*names}
    assert sorted(hooks.ERRORS) == sorted(name for name in xbridge.__all__ if name.endswith("Error"))


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ("../benchmarks/README.md#large-arrays", "benchmarks/README.md#large-arrays"),
        ("contract.md", "contract.md"),
        ("../src/xbridge/errors.py", "source/src/xbridge/errors.py.md"),
        ("https://example.org/contract.md", "https://example.org/contract.md"),
        ("#here", "#here"),
        ("absent.md", "absent.md"),
    ],
)
def test_site_links__repository_files_become_pages(
    link: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a file of the repository becomes a link to its page."""
    markdown = pytest.importorskip("markdown")
    uris = {
        "docs/why.md": "why.md",
        "docs/contract.md": "contract.md",
        "benchmarks/README.md": "benchmarks/README.md",
        "src/xbridge/errors.py": "source/src/xbridge/errors.py.md",
    }
    monkeypatch.setattr(hooks, "URIS", uris)
    monkeypatch.setattr(hooks.LINKS, "uri", "why.md")
    html = markdown.markdown(f"[x]({link}) `[x]({link})`", extensions=[hooks.LINKS])
    assert html == f'<p><a href="{found}">x</a> <code>[x]({link})</code></p>'


@pytest.mark.parametrize(
    ("code", "uri", "found"),
    [
        ("to_numpy", "why.md", "reference/to_numpy.md"),
        ("xbridge.tree.map", "why.md", "reference/tree.map.md"),
        ("assert_same", "why.md", "reference/testing.assert_same.md"),
        ("arrays", "why.md", ""),
        ("arrays", "test-your-library.md", "reference/testing.strategies.arrays.md"),
        ("CopyError", "why.md", "errors.md#copyerror"),
        ("numpy", "why.md", ""),
    ],
)
def test_link_of__public_name_in_code(
    code: str, uri: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public name in code formatting links to its page."""
    names = [name for group in hooks.reference().values() for name in group]
    monkeypatch.setattr(hooks, "NAMES", {name: f"reference/{name}.md" for name in names})
    assert hooks.link_of(code, uri) == found


def test_on_page_markdown__rewrites_fences() -> None:
    """The info strings of code blocks are rewritten for mkdocs."""
    text = "```python no-run\n```\n```python file=reel.py\n```\n```console run\n```\n```pycon\n```"
    page = SimpleNamespace(file=SimpleNamespace(src_uri="why.md"), is_homepage=False)
    assert hooks.on_page_markdown(text, page).splitlines()[::2] == [
        *("```python", '```python title="reel.py"', "```console", "```pycon")
    ]


# -- the check ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def write(folder: Path, body: str) -> Path:
    """A site with two pages."""
    for name, text in (("dev", body), ("dev/contract", '<article><h1 id="a">Contract</h1></article>')):
        (folder / name).mkdir(exist_ok=True)
        page = f'<!doctype html><link rel="icon" href="data:,"><body>{text}</body>'
        (folder / name / "index.html").write_text(page, "utf-8")
    return folder


HEADING = "<article><h1>Home</h1></article>"
FAULTS = {
    "": None,
    "<a href='contract/#a'>x</a><a href='https://example.org/x'>x</a>": None,
    "<a href='contract/#b'>x</a>": "contract/#b: no such anchor",
    "<a href='absent/'>x</a>": "absent/ does not exist",
    "<div style='width: 999px'>x</div>": "is 999 pixels wide on a screen of 390",
    "<script>console.error('broken')</script>": "broken",
    "<script>throw new Error('thrown')</script>": "thrown",
    "<script>fetch('https://example.org/x').catch(() => 0)</script>": "asks for https://example.org/x",
}


@needs_a_browser
@pytest.mark.parametrize("body", FAULTS)
def test_site_check__finds_faults(body: str, chromium: "Browser", tmp_path: Path) -> None:
    """The check reports each kind of fault and nothing on a good page."""
    site = write(tmp_path, f"<style>body {{ margin: 0 }}</style>{HEADING}{body}")
    with (
        check.served(site) as root,
        chromium.new_context(viewport={"width": check.PHONE, "height": 844}) as context,
    ):
        faults = check.watched(context, root)
        pages, wrong = check.visited(context.new_page(), root, site)
    assert pages == 2
    faults += wrong
    wanted = FAULTS[body]
    assert any(wanted in fault for fault in faults) if wanted else faults == []
