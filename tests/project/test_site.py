"""The site: its pages and links come from the repository, and the check finds what is wrong with it."""

from types import SimpleNamespace

import pytest

import xbridge

hooks = pytest.importorskip("site_hooks", reason="needs MkDocs", exc_type=ImportError)
check = pytest.importorskip("site_check", reason="needs Playwright", exc_type=ImportError)


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
