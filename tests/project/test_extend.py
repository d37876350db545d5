"""The wall between the core and the packages beside it, which know it by `xbridge.extend`."""

from __future__ import annotations

import ast
import re

import floors
import pytest

from xbridge import extend

GUESTS = ("files", "functions", "testing")
"""The packages behind the wall."""

DOORS = {"xbridge", "xbridge.errors", "xbridge.extend", "xbridge.protocol", "xbridge.tree"}
"""The public modules of the core."""

PLUGIN = floors.ROOT.parent / "_xbridge_pytest.py"
"""The part of the test kit that is outside the package."""


def test_extend__is_small() -> None:
    """There are few names for the packages beside the core."""
    assert len(extend.__all__) <= 25
    assert extend.__all__ == sorted(extend.__all__)


def test_extend__names_are_described() -> None:
    """The page on how xbridge works has a row for each name."""
    page = (floors.ROOT.parents[1] / "docs/how-it-works.md").read_text(encoding="utf-8")
    part = page.partition("## Packages beside the core")[2].partition("## ")[0]
    assert re.findall(r"^\| `(\w+)", part, re.MULTILINE) == extend.__all__


def imported_by(guest: str) -> set[str]:
    """The modules outside of a guest that it imports, also in functions and for types."""
    own = f"xbridge.{guest}"
    paths = [path for module, path in floors.FILES.items() if f"{module}.".startswith(f"{own}.")]
    paths += [PLUGIN] if guest == "testing" else []
    found = {one for path in paths for one in floors.imported(ast.parse(path.read_text("utf-8")), types=True)}
    return {one for one in found if not f"{one}.".startswith(f"{own}.")}


@pytest.mark.parametrize("guest", GUESTS)
def test_guests__import_public_names_of_the_core(guest: str) -> None:
    """A guest imports the core by its public modules."""
    guests = {f"xbridge.{one}" for one in ("files", "functions", "testing")}
    inside = {one for one in imported_by(guest) if ".".join(one.split(".")[:2]) not in guests}
    assert inside <= DOORS
