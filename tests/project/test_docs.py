"""The documents and the code: what is generated is fresh, and what a page names is there."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import xbridge
from xbridge import testing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`docs/check.py` over the pages of a temporary repository, and a function that writes one."""
    monkeypatch.syspath_prepend(DOCS)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "")  # which `check` sets when it is imported
    check = import_module("check")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["check.py"])

    def write(name: str, *lines: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join(lines), "utf-8")

    return SimpleNamespace(check=check.main, write=write)


def test_docs_check__runs_examples_and_follows_links(
    checker: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages in subfolders are checked for examples, links and headings."""
    checker.write("docs/contract.md", "# The contract", "## copy")
    checker.write(
        "docs/how-to/convert.md",
        *("# Convert", "[there](../contract.md#copy), [index](index.md), [lost](contract.md)"),
        *("[also lost](../contract.md#device)", "```python", "name = 1", "```", "```pycon", ">>> name", "2"),
        "```",
    )
    checker.write("docs/how-to/index.md", "# How to", "[here](convert.md#convert)")
    assert checker.check() == 3
    shown = capsys.readouterr()
    assert shown.out == "3 pages, 2 examples, 5 links, 3 faults\n"
    assert "docs/how-to/convert.md: contract.md does not exist" in shown.err
    assert "docs/how-to/convert.md: ../contract.md#device: no such heading" in shown.err
    assert 'File "docs/how-to/convert.md", line 8' in shown.err


def test_reference__lists_every_public_name() -> None:
    """The reference has one row for each public name."""
    strategies = pytest.importorskip("xbridge.testing.strategies")
    named = re.findall(r"^\| `([\w.]+)`", (DOCS / "reference.md").read_text("utf-8"), re.MULTILINE)
    modules = {"": xbridge, "tree.": xbridge.tree, "testing.": testing, "testing.strategies.": strategies}
    assert sorted(named) == sorted(f"{at}{name}" for at, module in modules.items() for name in module.__all__)


def test_principles__named_tests_exist() -> None:
    """Each test named in the principles exists in the file they link to."""
    text = (DOCS / "principles.md").read_text("utf-8")
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)", text)
    assert len(named) >= 10
    for test, path in named:
        assert f"def {test}(" in (ROOT / path).read_text("utf-8"), f"{path} has no {test}"


def test_how_it_works__named_functions_exist() -> None:
    """Each function that the page names is defined in the file it links to."""
    text = (DOCS / "how-it-works.md").read_text("utf-8")
    section = text.partition("## Where a behaviour is decided")[2].partition("## ")[0]
    row = r"^\| (?!behaviour)[^|]+ \| ([^|]+) \| \[`[^|]+\]\(\.\./([^|]+)\) \|$"
    rows = re.findall(row, section, re.MULTILINE)
    assert len(rows) == section.count("\n|") - 2
    for names, path in rows:
        defined = re.findall(r"^(?:def|class) (\w+)", (ROOT / path).read_text("utf-8"), re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", names)) <= {*defined}, path


def test_explain_page__line_numbers_are_conversions() -> None:
    """The line numbers on the page are conversions in `examples/digits.py`."""
    lines = (ROOT / "examples" / "digits.py").read_text("utf-8").splitlines()
    page = (DOCS / "explain.md").read_text("utf-8")
    named = {int(n) for n in re.findall(r"(?:digits\.py:|Line )(\d+)", page)}
    assert len(named) == 6
    assert all(re.search(r"to_backend\(|to_numpy\(", lines[n - 1]) for n in named)


ARRAYS = {"x", "xs", "a", "b", "obj"}
OPTIONS = {"device", "dtype", "copy", "grad", "like", "requires_grad"}


@pytest.mark.parametrize("name", [name for name in xbridge.__all__ if name[0].islower()])
def test_api__options_are_keyword_only(name: str) -> None:
    """Arrays are positional-only, and options are keyword-only with the default None."""
    for word, parameter in inspect.signature(getattr(xbridge, name)).parameters.items():
        if word in ARRAYS:
            assert parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)
        if word in OPTIONS:
            assert (parameter.kind, parameter.default) == (parameter.KEYWORD_ONLY, None)


@pytest.mark.parametrize("folder", ["how-to", "adoption"])
def test_docs_index__lists_every_page(folder: str) -> None:
    """The README of a folder links to each of its pages by title."""
    index = (DOCS / folder / "README.md").read_text("utf-8")
    pages = {page.name for page in (DOCS / folder).glob("*.md")} - {"README.md"}
    assert set(re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\) \|", index, re.MULTILINE)) == pages
    for page in pages:
        title = (DOCS / folder / page).read_text("utf-8").partition("\n")[0].removeprefix("# ")
        assert f"[{title}]({page})" in index
