"""`matrix`: every cell is a conversion that was made, and says what happened to its memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from inside import DTYPES

import xbridge
from xbridge.files import matrix
from xbridge.testing.samples import lookup

if TYPE_CHECKING:
    from shell import Cli

    from xbridge.protocol import Array

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


@pytest.mark.parametrize("source", ["numpy", "torch"])
def test_matrix__row_for_each_layout_that_says_what_addresses_say(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """There is a row for each layout, which says what addresses say."""
    target = {"numpy": "torch", "torch": "numpy"}[source]
    made: list[tuple[Array, Array]] = []

    def kept(x: Array, backend: str) -> Array:
        made.append((x, xbridge.to_backend(x, backend)))
        return made[-1][1]

    monkeypatch.setattr(matrix, "to_backend", kept)
    found = rows(cli, "layouts", "--from", source, "--to", target)
    assert list(found) == list(lookup.samples_of(source).cases)
    for (x, y), cell in zip(made, found.values(), strict=True):
        host, tensor = (x, y) if source == "numpy" else (y, x)
        alone = np.asarray(tensor.detach().resolve_conj().resolve_neg())
        same = np.shares_memory(alone, host) and not tensor.is_conj() and not tensor.is_neg()
        assert cell[target].startswith("shared" if same else "copied")
        if source == "torch" and same:
            assert ("read-only" in cell[target]) != host.flags.writeable


def test_matrix__with_one_backend_there_is_nothing_to_measure(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one backend there is nothing to measure."""
    monkeypatch.setattr(matrix, "is_available", lambda name: name == "numpy")
    assert "numpy is the only backend that is installed; try " in cli.refused("matrix", "dtypes")
    assert cli.run("matrix", "pairs").splitlines()[1] == "numpy  itself"
