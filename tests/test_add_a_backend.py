"""The backend on the page about backends, taken from there: short, whole, and held to every promise."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kit_toy_suite import few_examples, run

import xbridge
from xbridge._core.protocol import FACTS, VERBS
from xbridge.backends._registry import get

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["few_examples"]

PAGE = (Path(__file__).parents[1] / "docs" / "add-a-backend.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python file=(\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_registry: None) -> Iterator[str]:
    """The files of the page, where they can be imported, registered as the page says."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    xbridge.register_backend("box", "box_xbridge")
    yield "box"
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


@pytest.mark.usefixtures("few_examples")
def test_the_backend_of_the_page_keeps_every_promise_but_those_that_it_names(box: str) -> None:
    reports = run(box)
    assert (reports.failed, reports.astray) == ({}, {})
    assert len(reports.passed) > 100
    assert set(get(box).gaps) == {"device", "history", "namespace"}


def test_the_backend_of_the_page_has_40_lines() -> None:
    assert len([line for line in FILES["box_xbridge.py"].splitlines() if line]) == 40
    assert "a first one takes 40 lines" in PAGE


def test_the_page_counts_the_facts_and_the_verbs() -> None:
    assert f"{len(FACTS)} facts and {len(VERBS)} verbs" in PAGE
