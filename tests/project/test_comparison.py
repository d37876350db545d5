"""The table of docs/why.md on what each way of conversion keeps: every cell is run."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pins import is_pinned

import xbridge

torch = pytest.importorskip("torch")
jnp = pytest.importorskip("jax.numpy")

from traps import BRAIN_BYTES, DOUBLES, TRAPS, outcome  # noqa: E402 -- it imports torch

pytestmark = pytest.mark.skipif(
    not all(map(is_pinned, ("array_api_compat", "jax", "numpy", "torch"))),
    reason="the table is of the versions of requirements/constraints.txt",
)

PAGE = Path(__file__).parents[2] / "docs" / "why.md"

WAYS: dict[str, dict[str, Callable[[Any], Any]]] = {
    target: {
        "xbridge": partial(xbridge.to_backend, backend=target),
        "idiom": idiom,
        "DLPack": from_dlpack,
        "array-api-compat": xbridge.array_namespace(like).asarray,
    }
    for target, idiom, from_dlpack, like in (
        ("numpy", np.asarray, np.from_dlpack, np.ones(1)),
        ("torch", torch.asarray, torch.from_dlpack, torch.ones(1)),
        ("jax", jnp.asarray, jnp.from_dlpack, jnp.ones(1)),
    )
}


def read_as(dtype: str) -> str:
    """What is seen of an `array.array` whose bytes are read as numbers of a dtype."""
    return repr((f"torch.{dtype}", bytes(DOUBLES)))


VIEWS = {"False": "read-only view", "True": "**writable view**"}
ROWS: dict[str, tuple[str, dict[str, str]]] = {
    "values: a pending negation, torch to NumPy": (
        *("negative-bit", {"[-2.0]": "exact", "[2.0]": "**wrong sign**"}),
    ),
    "values: a mask, NumPy to torch": ("masked", {"[1.0, 2.0]": "**mask dropped**"}),
    'dtype: `array.array("d")` to torch': (
        *("typed-buffer", {read_as("float64"): "exact", read_as("float32"): "**bytes read as float32**"}),
    ),
    "dtype: int64 to JAX without x64": ("jax-wraps", {"[1]": "**wrong number**"}),
    "read-only: NumPy to torch": (
        *("read-only", {"[1.0, 1.0, 1.0]": "copied", "[7.0, 7.0, 7.0]": "**shared, writable**"}),
    ),
    "gradient: torch to NumPy": ("no-grad", VIEWS),
    "gradient: a tensor that requires grad, under `torch.no_grad()`": ("no-grad", VIEWS),
    "device: NumPy to torch, with a default device set": (
        *("default-device", {"cpu": "stays", "meta": "**moved**"}),
    ),
    "bfloat16: torch to NumPy": ("bfloat16", {repr(BRAIN_BYTES): "exact"}),
}
"""The trap of each row, and the words of the table for what is seen of it."""

PART = PAGE.read_text("utf-8").partition("<!-- comparison -->\n")[2].partition("<!-- end -->")[0]
HEAD, _, *LINES = ([cell.strip() for cell in line.strip("|").split("|")] for line in PART.splitlines())


def test_why__table_has_the_tested_rows() -> None:
    """The comparison table has exactly the rows and columns that are tested."""
    assert ["conversion", *WAYS["numpy"]] == HEAD
    assert [line[0] for line in LINES] == [*ROWS]


@pytest.mark.parametrize("title", ROWS)
@pytest.mark.parametrize("column", WAYS["numpy"])
@pytest.mark.filterwarnings("ignore")  # libraries may warn of what they do; it is no error to them
def test_why__table_cells_are_true(title: str, column: str) -> None:
    """Each cell of the comparison table is what the conversion does."""
    trap, words = ROWS[title]
    with warnings.catch_warnings():
        warnings.simplefilter("error" if column == "xbridge" else "ignore")
        seen = outcome(TRAPS[trap].look, WAYS[TRAPS[trap].target][column])
    if trap == "no-grad":
        assert isinstance(seen, list)
        seen = seen["no_grad" in title]
    (line,) = (line for line in LINES if line[0] == title)
    found = "raises" if isinstance(seen, type) else words[str(seen)]
    assert dict(zip(HEAD, line, strict=True))[column] == found
    assert column != "xbridge" or not isinstance(seen, type) or issubclass(seen, xbridge.XBridgeError)
