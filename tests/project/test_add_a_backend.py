"""The backends on the page about backends, taken from there: short, whole, and held to every promise."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from inside import FEATURES, REQUIRED, get_backend
from kit_toy_suite import few_examples, run

import xbridge

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["few_examples"]

PAGE = (Path(__file__).parents[2] / "docs" / "add-a-backend.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python file=(\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_registry: None) -> Iterator[None]:
    """The files of the page, which can be imported, and their backends, registered as the page says."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("box", "row", "crate", "reel"):
        xbridge.register_backend(name, f"{name}_xbridge")
    yield
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.usefixtures("few_examples", "registered")
@pytest.mark.parametrize(
    ("name", "gaps"),
    [
        ("box", {"devices", "autograd", "namespace"}),
        ("row", {"devices", "autograd", "namespace", "sharing"}),
        ("crate", {"autograd", "namespace"}),
        ("reel", {"namespace"}),
    ],
)
def test_add_a_backend__examples_pass_conformance(name: str, gaps: set[str]) -> None:
    """Each backend on the page passes the conformance suite except for its declared gaps."""
    reports = run(name)
    assert (reports.failed, reports.astray) == ({}, {})
    assert len(reports.passed) > 75
    assert set(get_backend(name).gaps) == gaps


def test_add_a_backend__first_example_has_ten_lines() -> None:
    """The first backend on the page has at most ten lines and every required name."""
    lines = [line for line in FILES["box_xbridge.py"].splitlines() if line]
    assert len(lines) <= 10
    assert all(f"{word} = " in "\n".join(lines) or f"def {word}(" in "\n".join(lines) for word in REQUIRED)


def test_add_a_backend__lists_every_feature() -> None:
    """The page names every feature that can be declared as a gap."""
    named = re.search(r"A gap is a feature that a library does not have: (.*?)\. ", PAGE)
    assert named
    assert re.findall(r"`(\w+)`", named[1]) == list(FEATURES)
