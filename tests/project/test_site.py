"""The site: its pages come from the repository. MkDocs checks links, and `docs/site_check.py` opens pages."""

from types import SimpleNamespace

import pytest

import xbridge

hooks = pytest.importorskip("site_hooks", reason="needs MkDocs", exc_type=ImportError)


def test_site_reference__has_a_page_per_public_name() -> None:
    """Each public name has a page, and errors link to the index of errors."""
    names = [name for found in hooks.reference().values() for name in found]
    assert sorted(name for name in names if "." not in name) == sorted(
        name for name in xbridge.__all__ if not name.endswith(("Error", "Warning"))
    )
    assert {"tree.map", "testing.assert_same", "testing.strategies.arrays"} < {*names}
    assert sorted(hooks.ERRORS) == sorted(name for name in xbridge.__all__ if name.endswith("Error"))


def test_on_page_markdown__rewrites_fences() -> None:
    """The info strings of code blocks are rewritten for mkdocs."""
    text = "```python no-run\n```\n```python file=reel.py\n```\n```console run\n```\n```pycon\n```"
    page = SimpleNamespace(file=SimpleNamespace(src_uri="why.md"), is_homepage=False)
    assert hooks.on_page_markdown(text, page).splitlines()[::2] == [
        *("```python", '```python title="reel.py"', "```console", "```pycon")
    ]


def test_source_of__each_public_name_is_a_file_of_the_repository() -> None:
    """A page of the reference links to the source of its name, and the front page to the whole package."""
    for name in hooks.NAMES or [name for names in hooks.reference().values() for name in names]:
        path = hooks.source_of(name)
        assert path.is_relative_to(hooks.ROOT / "src" / "xbridge")
        assert name.rpartition(".")[2] in path.read_text("utf-8")
    assert hooks.ROOT / "src" / "xbridge" in hooks.targets(hooks.ROOT / "README.md")
