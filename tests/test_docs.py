"""The documents and the code: what is generated is fresh, and what a page names is there."""

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xbridge

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGE = Path(xbridge.__file__).parent
GENERATED = ("reference.md", "support.md")


def generate(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run the generator as `make docs` does, in an interpreter that has registered nothing."""
    command = [sys.executable, "-W", "error", DOCS / "generate.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_generated_pages_are_what_the_code_says_today(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for page in GENERATED:
        shutil.copy(DOCS / page, tmp_path)
    shown = generate(tmp_path)
    assert shown.returncode == 0, shown.stderr
    for page in GENERATED:
        assert (tmp_path / page).read_text("utf-8") == (DOCS / page).read_text("utf-8"), f"{page} is stale"


def test_the_check_for_stale_pages_fails_on_one_and_writes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    page = tmp_path / "support.md"
    stale = (DOCS / "support.md").read_text("utf-8").replace("| copied |", "| shared |", 1)
    page.write_text(stale, "utf-8")
    shown = generate(tmp_path, "--check")
    assert shown.returncode == 1
    assert "support.md is stale; try python docs/generate.py" in shown.stderr
    assert page.read_text("utf-8") == stale


def test_every_generated_part_of_a_page_is_filled() -> None:
    parts = [
        part
        for page in GENERATED
        for part in re.findall(
            r"<!-- generated: \w+ -->(.*?)<!-- end -->", (DOCS / page).read_text("utf-8"), re.DOTALL
        )
    ]
    assert len(parts) == 6
    assert all(part.strip() for part in parts)


def test_the_reference_has_a_place_for_every_public_name() -> None:
    text = (DOCS / "reference.md").read_text("utf-8")
    named = re.findall(r"^(?:## |\| `)(\w+)(?:`|$)", text, re.MULTILINE)
    assert sorted(named) == sorted(xbridge.__all__)


def test_the_page_on_how_it_works_names_every_file() -> None:
    text = (DOCS / "how-it-works.md").read_text("utf-8")
    named = re.findall(r"\]\(\.\./src/xbridge/([\w/]+\.py)\)", text)
    assert sorted(set(named)) == sorted(
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")
    )


def test_every_test_that_the_principles_name_is_in_the_file_they_name() -> None:
    text = (DOCS / "principles.md").read_text("utf-8")
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/\w+\.py)\)", text)
    assert len(named) >= 10
    for test, path in named:
        assert f"def {test}(" in (ROOT / path).read_text("utf-8"), f"{path} has no {test}"


ARRAYS = {"x", "xs", "a", "b", "obj"}
OPTIONS = {"device", "dtype", "copy", "grad", "like", "requires_grad"}


@pytest.mark.parametrize("name", [name for name in xbridge.__all__ if name[0].islower()])
def test_an_option_is_a_keyword_with_one_default_wherever_it_is_taken(name: str) -> None:
    for word, parameter in inspect.signature(getattr(xbridge, name)).parameters.items():
        if word in ARRAYS:
            assert parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)
        if word in OPTIONS:
            assert (parameter.kind, parameter.default) == (parameter.KEYWORD_ONLY, None)
