"""`examples/adopters`: the converters of other projects, before and after, held to what the pages say.

`make adopters` runs the projects' own tests. Here each fault that a page of docs/adoption lists is shown in
the installed package, and cured by the replacement. What no page lists must be the same before and after.
"""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xbridge

for needed in ("autoray", "dask", "gymnasium", "jax", "ot", "torch"):
    pytest.importorskip(needed)

from traps import BRAIN_BYTES, TRAPS, Trap, outcome, written  # noqa: E402 -- it imports torch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "adopters"
PAGES = {name: ROOT / "docs" / "adoption" / f"{name}.md" for name in ("gymnasium", "autoray", "pot")}

torch = import_module("torch")
jax = import_module("jax")
da = import_module("dask.array")
NAMESPACES = {
    name: import_module(path)
    for name, path in {
        "numpy": "array_api_compat.numpy",
        "torch": "array_api_compat.torch",
        "jax": "jax.numpy",
        "dask": "array_api_compat.dask.array",
    }.items()
}


def replacement(name: str) -> Any:
    """The module of the example."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the project
            return import_module(name)


def both(project: str) -> tuple[Any, Any]:
    """`convert(x, library, like=None)` by the project, and by its replacement."""
    if project == "gymnasium":
        made = replacement("gymnasium_array_conversion")
        pair = (made.theirs.array_conversion, made.array_conversion)
        return tuple(lambda x, to, f=f: f(x, NAMESPACES[to]) for f in pair)  # type: ignore[return-value]
    if project == "autoray":
        made = replacement("autoray_conversion")
        return made.original_to, made.to
    made = replacement("pot_backend")
    owners = {"torch": made.backend.TorchBackend(), "jax": made.backend.JaxBackend()}

    def theirs(x: Any, to: str) -> Any:
        return owners[xbridge.backend_of(x)].to_numpy(x) if to == "numpy" else owners[to].from_numpy(x)

    def ours(x: Any, to: str) -> Any:
        return made.to_numpy(None, x) if to == "numpy" else made.from_numpy(owners[to], x)

    return theirs, ours


# -- what a page lists as cured ------------------------------------------------------------------

CASES = TRAPS | {
    "parameter": Trap("numpy", lambda convert: written(torch.ones(2, requires_grad=True), convert)),
    "graph-to-numpy": Trap("numpy", lambda convert: convert(torch.ones(2, requires_grad=True)).tolist()),
    "graph-to-jax": Trap("jax", lambda convert: convert(torch.ones(2, requires_grad=True)).tolist()),
    "text": Trap("torch", lambda convert: convert({"name": "CartPole"})["name"][:8]),
    "to-dask": Trap("dask", lambda convert: convert(np.ones(2)).compute().tolist()),
    "from-dask": Trap("torch", lambda convert: convert(da.ones(2)).tolist()),
}
"""What a page lists, by its name there: the traps of docs/how-to/migrate.md, and more."""

CURED: list[tuple[str, str, object, object]] = [
    ("gymnasium", "jax-alias", [7.0] * 6, [0.0] * 6),
    ("gymnasium", "jax-changed", [7.0] * 3, [0.0] * 3),
    ("gymnasium", "graph-to-numpy", BufferError, [1.0] * 2),
    ("gymnasium", "graph-to-jax", BufferError, [1.0] * 2),
    ("gymnasium", "bfloat16", RuntimeError, BRAIN_BYTES),
    ("gymnasium", "text", "<generat", "CartPole"),
    ("gymnasium", "to-dask", AttributeError, [1.0] * 2),
    ("gymnasium", "from-dask", RuntimeError, [1.0] * 2),
    ("autoray", "jax-changed", [7.0] * 3, [0.0] * 3),
    ("autoray", "read-only", [7.0] * 3, [1.0] * 3),
    ("autoray", "parameter", [7.0] * 2, [1.0] * 2),
    ("autoray", "reversed", ValueError, [2.0, 1.0, 0.0]),
    ("autoray", "bfloat16", TypeError, BRAIN_BYTES),
    ("autoray", "jax-wraps", [1], xbridge.ValueLossError),
    ("autoray", "masked", [1.0, 2.0], xbridge.UnsupportedArrayError),
    ("pot", "read-only", [7.0] * 3, [1.0] * 3),
    ("pot", "parameter", [7.0] * 2, [1.0] * 2),
    ("pot", "reversed", ValueError, [2.0, 1.0, 0.0]),
    ("pot", "bfloat16", TypeError, BRAIN_BYTES),
    ("pot", "negative-bit", RuntimeError, [-2.0]),
    ("pot", "jax-wraps", [1], xbridge.ValueLossError),
    ("pot", "masked", [1.0, 2.0], xbridge.UnsupportedArrayError),
]


@pytest.mark.parametrize(("project", "case", "before", "after"), CURED)
def test_adopters__replacement_fixes_listed_faults(
    project: str, case: str, before: object, after: object
) -> None:
    """Each fault listed on a page occurs with the installed package and not with its replacement."""
    target, look = CASES[case]
    for convert, expected in zip(both(project), (before, after), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert outcome(look, lambda x, convert=convert: convert(x, target)) == expected


# -- what stays the same -------------------------------------------------------------------------


def described(x: Any) -> Any:
    """A value in a form that can be compared: containers, types, dtypes and values."""
    if isinstance(x, dict):
        return {key: described(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return (type(x), [described(value) for value in x])
    if not hasattr(x, "dtype"):
        return x
    return (type(x), str(x.dtype), tuple(x.shape), np.asarray(x).tolist())


SAME = [
    np.arange(6, dtype="float32").reshape(2, 3),
    np.arange(3, dtype="uint8"),
    np.array(1.5, "float32"),
    np.zeros((0, 2), "float32"),
    np.arange(6, dtype="int32").reshape(2, 3).T,
]


@pytest.mark.parametrize("project", PAGES)
@pytest.mark.parametrize("target", ["torch", "jax"])
def test_adopters__ordinary_arrays_convert_as_before(project: str, target: str) -> None:
    """The replacement converts ordinary arrays as the original does."""
    theirs, ours = both(project)
    for x in SAME:
        assert described(ours(x, target)) == described(theirs(x, target))
        there = theirs(x, target)
        assert described(ours(there, "numpy")) == described(theirs(there, "numpy"))


# -- what `install` replaces, and what a page counts ---------------------------------------------


def test_adopters__every_fault_is_listed() -> None:
    """Each fault that is tested has a row on the page of its project."""
    for project, page in PAGES.items():
        shown = {case for name, case, _, _ in CURED if name == project}
        listed = set(re.findall(r"^\| `([\w-]+)` \|", page.read_text("utf-8"), re.MULTILINE))
        assert listed - {"reversed-aborts"} == shown
