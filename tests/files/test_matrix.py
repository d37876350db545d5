"""`matrix`: every cell is a conversion that was made, and says what happened to its memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from inside import DTYPES

from xbridge.files import matrix

if TYPE_CHECKING:
    from shell import Cli

pytest.importorskip("ml_dtypes")
torch = pytest.importorskip("torch")


def rows(cli: Cli, *words: str) -> dict[str, dict[str, str]]:
    """A table: row, column, and what is in the cell."""
    told = json.loads(cli.run("matrix", *words, "--json"))["rows"]
    return {row: {column: cell["memory"] for column, cell in line.items()} for row, line in told.items()}


def test_matrix__every_pair_of_backends_that_are_here_is_measured(cli: Cli) -> None:
    """Every pair of backends that are here is measured."""
    found = rows(cli, "--to", "numpy", "torch")
    assert found == {
        "numpy": {"numpy": "itself", "torch": "shared"},
        "torch": {"numpy": "shared", "torch": "itself"},
    }


def test_matrix__row_for_each_dtype(cli: Cli) -> None:
    """There is a row for each dtype."""
    assert rows(cli, "dtypes", "--to", "torch") == {
        name: {"torch": "shared" if hasattr(torch, name) and not facts.is_packed else "refused: DTypeError"}
        for name, facts in DTYPES.items()
    }
    lines = cli.run("matrix", "dtypes", "--to", "numpy", "torch").splitlines()
    assert lines[0].split() == ["from", "numpy", "to", "torch"]  # to itself is no crossing


def test_matrix__dtype_that_a_library_has_not(cli: Cli) -> None:
    """A dtype that a library lacks has no row."""
    pytest.importorskip("array_api_strict")
    told = json.loads(cli.run("matrix", "dtypes", "--to", "array_api_strict", "--json"))
    cell = told["rows"]["bfloat16"]["array_api_strict"]
    assert cell["memory"] == "refused: DTypeError"
    assert cell["why"]
    from_it = rows(cli, "dtypes", "--from", "array_api_strict", "--to", "numpy")
    assert (from_it["bfloat16"]["numpy"], from_it["float32"]["numpy"]) == ("-", "shared")


def test_matrix__with_one_backend_there_is_nothing_to_measure(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one backend there is nothing to measure."""
    monkeypatch.setattr(matrix, "is_available", lambda name: name == "numpy")
    assert "numpy is the only backend that is installed; try " in cli.refused("matrix", "dtypes")
    assert cli.run("matrix", "pairs").splitlines()[1] == "numpy  itself"
