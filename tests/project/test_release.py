"""What a release says: its version, the Pythons it ran on, and its links."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from release import disagreements

from xbridge import __version__

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_disagreements__none_for_this_version() -> None:
    """The changelog, the citation and the package name one version, and so would its tag."""
    assert disagreements(f"v{__version__}", __version__, CHANGELOG) == []
    assert re.search(
        rf"^version: {re.escape(__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize(
    ("tag", "changelog", "named"),
    [
        ("0.1.0", "## 0.1.0", ["The tag is 0.1.0"]),
        ("v0.2.0", "## 0.1.0", ["The tag is v0.2.0"]),
        ("v0.1.0", "## 0.2.0\n## 0.1.0", ["CHANGELOG.md is 0.2.0"]),
        ("v0.1.1", "# Changelog", ["The tag is v0.1.1", "CHANGELOG.md is missing"]),
    ],
)
def test_disagreements__names_each_that_differs(tag: str, changelog: str, named: list[str]) -> None:
    """A tag or a section of another version is named."""
    found = disagreements(tag, "0.1.0", changelog)
    assert len(found) == len(named)
    assert all(text in line for text, line in zip(named, found, strict=True))


# -- the Pythons -----------------------------------------------------------------------------------

WORKFLOWS = ROOT / ".github" / "workflows"
CLASSIFIERS: list[str] = PROJECT["classifiers"]
PYTHONS = [m[1] for line in CLASSIFIERS if (m := re.fullmatch(r"Programming .* Python :: (3\.\d+)", line))]
WITHOUT_GIL = any("Free Threading" in line for line in CLASSIFIERS)


def page(name: str) -> str:
    """The text of a document."""
    return (ROOT / "docs" / name).read_text("utf-8")


@pytest.mark.skipif(not WORKFLOWS.exists(), reason="an sdist has no workflows")
def test_classifiers__are_the_pythons_of_the_workflows() -> None:
    """The Pythons that must pass in the workflows are those that the metadata names, and no others."""
    text = {name: (WORKFLOWS / f"{name}.yml").read_text("utf-8") for name in ("ci", "release")}
    for matrix in (re.findall(r"^ +python: (\[.*\])$", yml, re.MULTILINE) for yml in text.values()):
        assert [re.findall(r'"([\d.]+)"', line) for line in matrix] == [PYTHONS]
    assert bool(re.search(r"^ +- run: make test-freethreaded", text["ci"], re.MULTILINE)) is WITHOUT_GIL
    unseen = re.findall(r'os: ubuntu\S+ python: "([\d.]+)"', text["ci"])
    assert not {*unseen} & {*PYTHONS}


def test_classifiers__are_the_pythons_of_the_pages() -> None:
    """The page of versions names these Pythons, from the oldest that installs, and each has its results."""
    listed = re.search(r"^\| Python \| ([\d.]+) \|", page("support.md"), re.MULTILINE)
    said = re.search(r"The classifiers of the package name Python (.+?)\.(?= )", page("support.md"))
    assert listed
    assert said
    assert PROJECT["requires-python"] == f">={listed[1]}" == f">={PYTHONS[0]}"
    assert re.findall(r"3\.\d+", said[1]) == PYTHONS
    assert ("without the GIL" in said[1]) is WITHOUT_GIL
    result = r"^\| (3\.\d+)\.\d+(t?) \|.*\| \d+ \| (\d+) \| \d+ \| \d+ \|$"
    rows = re.findall(result, page("quality.md"), re.MULTILINE)
    assert {python for python, without_gil, _ in rows if not without_gil} == {*PYTHONS}
    assert any(without_gil for _, without_gil, _ in rows) is WITHOUT_GIL
    assert {failed for _, _, failed in rows} == {"0"}


# -- the links -------------------------------------------------------------------------------------


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the metadata hook of the build, in an environment that names no repository."""
    pytest.importorskip("hatch_fancy_pypi_readme")
    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_REF_NAME", "GITHUB_REF_TYPE"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metadata(hook: ModuleType) -> dict[str, Any]:
    """Return what the hook adds to the metadata."""
    found: dict[str, Any] = {"name": PROJECT["name"], "version": __version__}
    hook.LinksMetadataHook(str(ROOT), {}).update(found)
    return found


LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def test_links_hook__links_are_absolute_in_workflow(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every link of the README and every URL is one of the repository and the tag that are built."""
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://forge.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "owner/name")
    monkeypatch.setenv("GITHUB_REF_TYPE", "tag")
    monkeypatch.setenv("GITHUB_REF_NAME", "v9")
    found = metadata(hook)
    assert found["urls"]["Source"] == "https://forge.example/owner/name"
    assert found["urls"]["Documentation"] == "https://owner.github.io/name/"
    targets = LINK.findall(found["readme"]["text"])
    here = [target for target in LINK.findall((ROOT / "README.md").read_text("utf-8")) if "://" not in target]
    assert len(targets) >= len(here) > 10
    for target in here:
        kind = "raw" if target.endswith((".svg", ".png")) else "blob"
        assert f"https://forge.example/owner/name/{kind}/v9/{target}" in targets
    assert all(target.startswith("https://") for target in targets)
