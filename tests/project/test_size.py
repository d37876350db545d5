"""The package stays small enough to be read: no part of it outgrows its limit.

A limit is what the part has, rounded up. It is lowered when the part gets smaller. A part that has to grow
raises it in the same commit, which says what the lines are for.
"""

from __future__ import annotations

import floors
import pytest

LIMITS = {
    "_core": 1_620,
    "_engine": 2_225,
    "_host": 2_060,
    "_observe": 670,
    "_plan": 1_190,
    "_registry": 770,
    "_transfer": 650,
    "backends": 3_460,
    "files": 2_575,
    "functions": 4_530,
    "testing": 10_290,
    "tree": 1_240,
}
"""The most lines of each folder of the package."""

ALL = 33_025
"""The most lines of all."""


def count_lines(folder: str = ".") -> int:
    return sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in (floors.ROOT / folder).rglob("*.py")
    )


@pytest.mark.parametrize("folder", LIMITS)
def test_package__part_is_within_its_limit(folder: str) -> None:
    """A folder has at most as many lines as its limit, which is not far above what it has."""
    assert LIMITS[folder] - 200 <= count_lines(folder) <= LIMITS[folder]


def test_package__is_within_its_limit() -> None:
    """The package has at most as many lines as its limit, and each of its folders has one."""
    assert count_lines() <= ALL
    folders = {path.name for path in floors.ROOT.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(LIMITS)
