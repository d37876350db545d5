"""The site: its pages and links come from the repository, and the check finds what is wrong with it."""

import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import xbridge

hooks = pytest.importorskip("site_hooks", reason="needs MkDocs", exc_type=ImportError)
check = pytest.importorskip("site_check", reason="needs Playwright", exc_type=ImportError)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
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


def test_site_described__includes_tables_of_options() -> None:
    """The page of a function has the tables of the options it takes."""
    tables = {"copy": "| `copy` | promise [x](libraries.md#jax) |", "grad": "| `grad` | promise |"}
    page = hooks.described("to_backend", tables)
    assert "::: xbridge.to_backend" in page
    assert page.count("| promise") == 2
    assert "](../libraries.md#jax)" in page
    assert "Options" not in hooks.described("backend_of", tables)


def test_site_docstrings__grouped_parameters_stay_together() -> None:
    """Parameters documented together stay in one row."""
    griffe = pytest.importorskip("griffe")
    together = import_module("site_docstrings").Together()
    text = (
        "Do it.\n\nParameters\n----------\ncopy, grad : bool\n    As for `align`.\n*xs, a\n    More, of them."
    )
    function = griffe.Function("f", docstring=griffe.Docstring(text))
    together.on_instance(obj=function)
    _, section = function.docstring.parse("numpy", warnings=False)
    assert [one.name.split() for one in section.value] == [["copy,", "grad"], ["*xs,", "a"]]
    assert str(section.value[0].annotation) == "bool"
    assert section.value[1].description == "More, of them."


def test_site_expanded__folder_becomes_its_pages() -> None:
    """A folder in the navigation is replaced by its pages, and an empty one is dropped."""
    entries = ["why.md", {"Empty": "nothing/"}, {"Measured": ["benchmarks/"]}, {"API": "reference.md"}]
    first, measured, api = hooks.expanded(entries, ["reference.md", {"Convert": ["reference/to_numpy.md"]}])
    assert first == "why.md"
    assert measured["Measured"][0] == "benchmarks/README.md"
    assert "benchmarks/gpu.md" in measured["Measured"]
    assert api == {"API": ["reference.md", {"Convert": ["reference/to_numpy.md"]}]}


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


def test_site_added__folder_shows_readme_or_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is shown by its README or else by a list of its files."""
    monkeypatch.setattr(hooks, "URIS", {})
    files: list[Any] = []
    config = SimpleNamespace(
        site_dir="x", use_directory_urls=True, plugins=SimpleNamespace(_current_plugin="x")
    )
    level = hooks.InclusionLevel.NOT_IN_NAV
    downstream = ROOT / "examples" / "downstream"
    assert hooks.added(files, config, downstream, level) == [downstream / "README.md"]
    assert hooks.URIS["examples/downstream"] == "examples/downstream/README.md"
    assert hooks.added(files, config, ROOT / "examples" / "functions", level) == []
    page = next(file for file in files if file.src_uri == "source/examples/functions/index.md")
    assert "- [forest.py](forest.py.md)" in page.content_string
    assert hooks.URIS["examples/functions/forest.py"] == "source/examples/functions/forest.py.md"


def test_on_page_markdown__rewrites_fences() -> None:
    """The info strings of code blocks are rewritten for mkdocs."""
    text = "```python no-run\n```\n```python file=reel.py\n```\n```console run\n```\n```pycon\n```"
    page = SimpleNamespace(file=SimpleNamespace(src_uri="why.md"), is_homepage=False)
    assert hooks.on_page_markdown(text, page).splitlines()[::2] == [
        *("```python", '```python title="reel.py"', "```console", "```pycon")
    ]


@pytest.mark.parametrize(
    ("uri", "search"),
    [
        ("why.md", None),
        ("benchmarks/README.md", None),
        ("add-a-backend.md", {"boost": 0.1}),
        ("reference/testing.strategies.dtypes.md", {"boost": 0.3}),
        ("contract.md", {"boost": 4}),
        ("how-to/migrate.md", {"boost": 2}),
        ("benchmarks/details.md", {"exclude": True}),
        ("source/pyproject.toml.md", {"exclude": True}),
        ("found-bugs.md", {"exclude": True}),
    ],
)
def test_on_page_markdown__ranks_pages_for_search(uri: str, search: dict[str, Any] | None) -> None:
    """Pages for developers rank lower in the search, and source files are left out."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), is_homepage=False, meta={})
    hooks.on_page_markdown("", page)
    assert page.meta.get("search") == search


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


@needs_a_browser
def test_site_check__finds_missing_headings(chromium: "Browser", tmp_path: Path) -> None:
    """A page without a heading is reported."""
    site = write(tmp_path, "<article>text</article>")
    with check.served(site) as root, chromium.new_page(viewport={"width": check.PHONE, "height": 844}) as tab:
        assert check.visited(tab, root, site) == (2, [f"{root}dev/: has no heading"])


@needs_a_browser
@pytest.mark.parametrize(("href", "is_right"), [("errors/?h=copyerror#copyerror", True), ("why/", False)])
def test_site_check__checks_search_results(
    href: str, is_right: bool, chromium: "Browser", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check reports a search that leads to the wrong page."""
    monkeypatch.setattr(check, "WANTED", {"CopyError": check.WANTED["CopyError"]})
    link = f"<a class='md-search-result__link' href='{href}'>CopyError</a>"
    site = write(tmp_path, f"{HEADING}<p class='md-search-result__item'>{link}</p>")
    with check.served(site) as root, chromium.new_page() as tab:
        assert [*check.searched(tab, f"{root}dev/")] == (
            [] if is_right else [f"{root}dev/: the search for CopyError finds ['why/']"]
        )


@needs_a_browser
def test_site_check__finds_dark_mode_that_resets(chromium: "Browser", tmp_path: Path) -> None:
    """The check reports a dark mode that is lost on the next page, and a missing list of versions."""
    site = write(tmp_path, f"{HEADING}<label title='Switch to dark mode'>dark</label>")
    (site / "dev/contract/index.html").write_text("<b class='md-version__current'>1.0</b>", "utf-8")
    with check.served(site) as root, chromium.new_page() as tab:
        assert [*check.switched(tab, f"{root}dev/")] == [
            f"{root}dev/: the dark mode does not stay on",
            f"{root}dev/: the versions are not shown",
        ]


def test_site_check__needs_a_browser_and_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails with a hint if there is no browser or no site."""
    monkeypatch.setattr("sys.argv", ["site_check.py", str(tmp_path)])
    monkeypatch.setattr(check, "BROWSERS", ("no-such-browser",))
    with pytest.raises(SystemExit, match="there is no Chromium here; try apt-get install chromium"):
        check.main()
    monkeypatch.setattr(check, "BROWSERS", ("sh",))
    with pytest.raises(SystemExit, match="has none; try make site"):
        check.main()
