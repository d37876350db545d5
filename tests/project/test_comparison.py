"""The table of docs/why.md on what each way of conversion keeps: every cell is run."""

import array
import re
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
jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.skipif(
    not all(map(is_pinned, ("array_api_compat", "jax", "numpy", "torch"))),
    reason="the table is of the versions of requirements/constraints.txt",
)

PAGE = Path(__file__).parents[2] / "docs" / "why.md"
Convert = Callable[[Any], Any]

TARGETS: dict[str, dict[str, Convert]] = {
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


def locked() -> Any:
    a = np.array([1.0, 2.0])
    a.flags.writeable = False
    return a


def bits(x: Any, convert: Convert) -> str:
    y = convert(x)
    same = np.frombuffer(x.tobytes(), "f8" if y.dtype == torch.float64 else "f4").tolist()
    assert y.tolist() == same
    return "exact" if y.dtype == torch.float64 else "**bytes read as float32**"


def number(x: Any, convert: Convert) -> str:
    with jax.enable_x64(False):
        return "exact" if convert(x).tolist() == x.tolist() else "**wrong number**"


def write(x: Any, convert: Convert) -> str:
    convert(x)[0] = 9
    return "copied" if x[0] == 1 else "**shared, writable**"


def view(x: Any, convert: Convert) -> str:
    y = convert(x)
    assert y.__array_interface__["data"][0] == x.data_ptr()
    return "**writable view**" if y.flags.writeable else "read-only view"


def within(context: Any, look: Callable[[Any, Convert], str]) -> Callable[[Any, Convert], str]:
    """A look at a conversion in a context of torch."""

    def look_within(x: Any, convert: Convert) -> str:
        with context:
            return look(x, convert)

    return look_within


SIGNS = {-2.0: "exact", 2.0: "**wrong sign**"}
WORDS = {"cpu": "stays", "meta": "**moved**"}
MASKED = np.ma.masked_array([1.0, -999.0], mask=[False, True])
BRAIN = torch.tensor([1.0, 1.5], dtype=torch.bfloat16)
LEAF = torch.ones(2, requires_grad=True)

ROWS: dict[str, tuple[Callable[[], Any], str, Callable[[Any, Convert], str]]] = {
    "values: a pending negation, torch to NumPy": (
        lambda: torch.tensor([1 + 2j]).conj().imag,
        "numpy",
        lambda x, convert: SIGNS[convert(x).item()],
    ),
    "values: a mask, NumPy to torch": (
        lambda: MASKED,
        "torch",
        lambda x, convert: "**mask dropped**" if convert(x).tolist() == x.data.tolist() else "",
    ),
    'dtype: `array.array("d")` to torch': (lambda: array.array("d", [1.0, 2.0]), "torch", bits),
    "dtype: int64 to JAX without x64": (lambda: np.array([2**40]), "jax", number),
    "read-only: NumPy to torch": (locked, "torch", write),
    "gradient: torch to NumPy": (lambda: LEAF, "numpy", view),
    "gradient: a tensor that requires grad, under `torch.no_grad()`": (
        lambda: LEAF,
        "numpy",
        within(torch.no_grad(), view),
    ),
    "device: NumPy to torch, with a default device set": (
        lambda: np.ones(2),
        "torch",
        within(torch.device("meta"), lambda x, convert: WORDS[convert(x).device.type]),
    ),
    "bfloat16: torch to NumPy": (
        lambda: BRAIN,
        "numpy",
        lambda x, convert: "exact" if convert(x).view("i2").tolist() == x.view(torch.int16).tolist() else "",
    ),
}
"""The source of each row, the library that it goes to, and what the result shows."""


def table() -> list[list[str]]:
    """The cells of the table, by line."""
    part = re.search(r"<!-- comparison -->\n(.*?)<!-- end -->", PAGE.read_text("utf-8"), re.DOTALL)
    assert part
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in part[1].splitlines())
    return [head, *rows]


HEAD, *LINES = table()


def test_readme__table_has_the_tested_rows() -> None:
    """The comparison table has exactly the rows and columns that are tested."""
    assert ["conversion", *TARGETS["numpy"]] == HEAD
    assert [line[0] for line in LINES] == [*ROWS]


@pytest.mark.parametrize("title", ROWS)
@pytest.mark.parametrize("column", TARGETS["numpy"])
@pytest.mark.filterwarnings("ignore")  # libraries may warn of what they do; it is no error to them
def test_readme__table_cells_are_true(title: str, column: str) -> None:
    """Each cell of the comparison table is what the conversion does."""
    make, target, look = ROWS[title]
    convert = TARGETS[target][column]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error" if column == "xbridge" else "ignore")
            found = look(make(), convert)
    except xbridge.XBridgeError as error:
        assert error.hint  # noqa: PT017 -- that there is an error at all is what the cell says
        found = "raises"
    except (BufferError, RuntimeError, TypeError):
        assert column != "xbridge"
        found = "raises"
    (line,) = (line for line in LINES if line[0] == title)
    assert dict(zip(HEAD, line, strict=True))[column] == found
