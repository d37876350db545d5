"""The documents and the code: what is generated is fresh, and what a page names is there."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pins import is_pinned

import xbridge
from xbridge import testing
from xbridge.backends import INDEX
from xbridge.protocol import Gap

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = ("how-it-works.md", "reference.md", "support.md")


needs_every_library = pytest.mark.skipif(
    not all(is_pinned(name) for name in INDEX if name != "cupy"),  # which is declared, and not measured
    reason="support.md is measured with every library, in the versions of requirements/constraints.txt",
)


def test_version__is_defined_once() -> None:
    """The build reads the version from the module that defines `__version__`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" in project["project"]["dynamic"]
    text = (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text("utf-8")
    assert re.findall(r'^__version__ = "(\d+\.\d+\.\d+)"$', text, re.MULTILINE) == [xbridge.__version__]


def generate(*arguments: str | Path, before: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the generator as `make docs` does, in an interpreter that has registered nothing."""
    command = [sys.executable, "-W", "error", DOCS / "generate.py", *arguments]
    paths = os.pathsep.join(filter(None, [before, os.environ.get("PYTHONPATH", "")]))
    around = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=around)


@pytest.mark.slow
@needs_every_library
def test_generate__pages_are_up_to_date(tmp_path: Path) -> None:
    """The generated parts of the documents match the code."""
    for page in GENERATED:
        shutil.copy(DOCS / page, tmp_path)
    shown = generate(tmp_path)
    assert shown.returncode == 0, shown.stderr
    for page in GENERATED:
        assert (tmp_path / page).read_text("utf-8") == (DOCS / page).read_text("utf-8"), f"{page} is stale"


@needs_every_library
def test_generate__names_a_missing_library(tmp_path: Path) -> None:
    """The check fails if a library cannot be imported and says which."""
    (tmp_path / "dask.py").write_text("raise ModuleNotFoundError('not here', name='dask')", "utf-8")
    shown = generate("--check", before=str(tmp_path))
    assert shown.returncode == 1
    assert shown.stderr.strip() == "cannot measure what is supported: dask is not installed; try make docs"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules of the generator."""
    monkeypatch.syspath_prepend(DOCS)
    names = ("claims", "declared", "generate", "measured")
    return SimpleNamespace(**{name: import_module(name) for name in names})


@needs_every_library
def test_generate__check_finds_stale_pages(
    tmp_path: Path, scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--check` fails on a stale page in any folder and leaves it unchanged."""
    texts = [(DOCS / page).read_text("utf-8") for page in GENERATED]
    fresh = {part[1]: part[0] for text in texts for part in scripts.generate.PART.finditer(text)}
    monkeypatch.setattr(scripts.generate, "parts", lambda: fresh)
    monkeypatch.setattr(sys, "argv", ["generate.py", str(tmp_path), "--check"])
    page = tmp_path / "support.md"
    shutil.copy(DOCS / page.name, page)
    inner = tmp_path / "how-to" / page.name
    inner.parent.mkdir()
    shutil.copy(page, inner)
    scripts.generate.main()
    stale = page.read_text("utf-8").replace("| copied |", "| shared |", 1)
    page.write_text(stale, "utf-8")
    with pytest.raises(SystemExit, match=r"support\.md is stale; try python docs/generate\.py"):
        scripts.generate.main()
    assert page.read_text("utf-8") == stale
    page.unlink()
    inner.write_text(stale, "utf-8")
    with pytest.raises(SystemExit, match=r"how-to.support\.md is stale"):
        scripts.generate.main()


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


def test_docs_check__ignores_durations_only(
    checker: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A duration may differ from the one on the page; any other number may not."""
    for shown, faults in (("row 1 took 1,234 ms", 0), ("row 1 took 2 s", 0), ("row 2 took 0.5 ms", 1)):
        checker.write("docs/page.md", *("```pycon", ">>> print('row 1 took 0.5 ms')", shown, "```"))
        checker.write("docs/shell.md", *("```console run", "$ echo row 1 took 0.5 ms", shown, "```"))
        assert checker.check() == 2 * faults
        assert f"{2 * faults} faults" in capsys.readouterr().out


def test_docs_check__reads_only_given_paths(
    checker: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only the pages and folders given as arguments are checked."""
    checker.write("docs/contract.md", "[lost](lost.md)")
    checker.write("docs/how-to/convert.md", "[lost](lost.md)")
    for given in ("docs/how-to", "docs/contract.md"):
        monkeypatch.setattr(sys, "argv", ["check.py", str(tmp_path / given)])
        assert checker.check() == 1
    assert capsys.readouterr().out == "1 pages, 0 examples, 1 links, 1 faults\n" * 2


PLANTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a gap that is none": (
        "numpy",
        {"gaps": {"devices": Gap("never", "it is one"), "sharing": Gap("never", "it is one")}},
        "numpy declares a gap in 'sharing', which is kept",
    ),
    "a gap not declared": ("jax", {"gaps": {}}, "jax declares no gap in 'axis_order', which is broken"),
    "a fact": (
        "dask",
        {"assumes_immutable": False},
        "numpy to dask is shared by what they declare, and copied",
    ),
    "another fact": (
        "array_api_strict",
        {"gaps": {"readonly": Gap("never", "it is one")}},
        "torch, requires grad to array_api_strict is copied",
    ),
}


@needs_every_library
@pytest.mark.parametrize("what", PLANTED)
def test_generate__stops_on_false_declarations(
    what: str, scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that declares something untrue stops the generation."""
    name, planted, told = PLANTED[what]
    backends = scripts.declared.declarations()
    assert [*scripts.claims.contradictions(backends)] == []
    wrong = [backend._replace(**planted) if backend.name == name else backend for backend in backends]
    monkeypatch.setattr(scripts.generate, "declarations", lambda: wrong)
    with pytest.raises(SystemExit, match="declarations of backends differ from measurements") as stopped:
        scripts.generate.parts()
    assert told in str(stopped.value)


@needs_every_library
def test_claims__tries_dtypes_said_to_be_missing(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dtype that a backend declares missing is reported if it works."""
    monkeypatch.setattr(scripts.claims, "goes", lambda name, word: True)
    told = [*scripts.claims.contradictions(scripts.declared.declarations())]
    assert "jax says that it lacks float64, which is not so" in told
    assert "array_api_strict says that it lacks bfloat16, which is not so" in told


@needs_every_library
def test_measured__marks_unmeasured_cells_in_italics(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be measured on the host is shown in italics as declared."""
    monkeypatch.setitem(scripts.declared.ACCELERATORS, "away", ("xpu",))
    backends = scripts.declared.declarations()
    numpy = next(backend for backend in backends if backend.name == "numpy")
    away = numpy._replace(
        name="away", gaps={"host": Gap("never", "it is away"), "readonly": Gap("never", "too")}
    )
    head, *rows = scripts.measured.pairs([*backends, away])
    last = {row[0]: row[-1] for row in rows}
    assert head[-1] == "to away"
    assert [last[row] for row in ("torch", "torch, requires grad", "numpy", "away")] == [
        *("*shared*", "*copied*", "*copied*", "*itself*")
    ]
    assert dict(zip(head, rows[-1], strict=True))["to jax"] == "*copied*"
    assert set(scripts.measured.devices([*backends, away])[-1]) == {"away", "*yes*", "*no*"}
    assert {row[-1] for row in scripts.measured.dtypes([*backends, away])[1:]} == {"*not measured*"}
    assert [*scripts.claims.contradictions([*backends, away])] == []


def test_generate__fills_every_part() -> None:
    """No generated part of a page is empty."""
    parts = [
        part
        for page in GENERATED
        for part in re.findall(
            r"<!-- generated: \w+ -->(.*?)<!-- end -->", (DOCS / page).read_text("utf-8"), re.DOTALL
        )
    ]
    assert len(parts) == 19
    assert all(part.strip() for part in parts)


def test_reference__lists_every_public_name() -> None:
    """The reference has one row for each public name."""
    strategies = pytest.importorskip("xbridge.testing.strategies")
    named = re.findall(r"^\| `([\w.]+)`", (DOCS / "reference.md").read_text("utf-8"), re.MULTILINE)
    modules = {"": xbridge, "tree.": xbridge.tree, "testing.": testing, "testing.strategies.": strategies}
    assert sorted(named) == sorted(f"{at}{name}" for at, module in modules.items() for name in module.__all__)


def first_block(page: str, word: str) -> str:
    """The first block of code of a page in which a word stands."""
    blocks = re.findall(r"```python no-run\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    found: str = next(block for block in blocks if word in block)
    return found


def test_get_started__example_is_in_test_your_library() -> None:
    """The first example of the kit is the same on both pages."""
    assert first_block("docs/get-started.md", "softmax") in first_block(
        "docs/test-your-library.md", "softmax"
    )


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
    rows = re.findall(
        r"^\| (?!behaviour)[^|]+ \| ([^|]+) \| \[`[^|]+\]\(\.\./([^|]+)\) \|$", section, re.MULTILINE
    )
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
