"""`examples/adopters`: the converters of other projects, before and after, held to what the pages say.

`make adopters` runs the projects' own tests. Here each fault that a page of docs/adoption lists is shown in
the installed package, and cured by the replacement. What no page lists must be the same before and after.
"""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xbridge

for needed in ("autoray", "dask", "gymnasium", "jax", "ot", "torch"):
    pytest.importorskip(needed)

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


def aligned(n: int) -> Any:
    """NumPy's float32 zeros that JAX can share, which takes memory at a multiple of 64 bytes."""
    whole = np.zeros(64 + 4 * n, "uint8")
    start = -whole.ctypes.data % 64
    return whole[start : start + 4 * n].view("float32")


def the_source_is_overwritten(convert: Any) -> Any:
    a = aligned(4)
    y = convert(a, "jax").block_until_ready()
    a[:] = 7
    return y.tolist()


def the_tensor_is_written(convert: Any) -> Any:
    x = jax.numpy.zeros(3)
    convert(x, "torch").add_(5)
    return x.tolist()


def read_only_memory_is_written(convert: Any) -> Any:
    a = np.zeros(3)
    a.flags.writeable = False
    convert(a, "torch").add_(5)
    return a.tolist()


def a_parameter_is_written(convert: Any) -> Any:
    w = torch.ones(2, requires_grad=True)
    with suppress(ValueError):  # read-only
        convert(w, "numpy")[0] = 9
    return w.tolist()


def a_large_integer(convert: Any) -> Any:
    with jax.enable_x64(False):
        return convert(np.array([2**40 + 1]), "jax").tolist()


CASES: dict[str, Any] = {
    "the_source_is_overwritten": the_source_is_overwritten,
    "the_tensor_is_written": the_tensor_is_written,
    "read_only_memory_is_written": read_only_memory_is_written,
    "a_parameter_is_written": a_parameter_is_written,
    "a_large_integer": a_large_integer,
    "a_reversed_array": lambda convert: convert(np.arange(3.0)[::-1], "torch").tolist(),
    "bfloat16": lambda convert: convert(torch.ones(2, dtype=torch.bfloat16), "numpy").dtype.name,
    "a_pending_sign": lambda convert: convert(torch.tensor([1 + 2j]).conj().imag, "numpy").tolist(),
    "a_mask": lambda convert: convert(np.ma.masked_array([1.0, 2.0], mask=[False, True]), "torch").tolist(),
    "a_graph_to_numpy": lambda convert: convert(torch.ones(2, requires_grad=True), "numpy").tolist(),
    "a_graph_to_jax": lambda convert: convert(torch.ones(2, requires_grad=True), "jax").tolist(),
    "text": lambda convert: convert({"name": "CartPole"}, "torch")["name"][:8],
    "to_dask": lambda convert: convert(np.ones(2), "dask").compute().tolist(),
    "from_dask": lambda convert: convert(da.ones(2), "torch").tolist(),
}
"""What a page lists, by its name there."""

CURED: list[tuple[str, str, object, object]] = [
    ("gymnasium", "the_source_is_overwritten", [7.0] * 4, [0.0] * 4),
    ("gymnasium", "the_tensor_is_written", [5.0] * 3, [0.0] * 3),
    ("gymnasium", "a_graph_to_numpy", BufferError, [1.0] * 2),
    ("gymnasium", "a_graph_to_jax", BufferError, [1.0] * 2),
    ("gymnasium", "bfloat16", RuntimeError, "bfloat16"),
    ("gymnasium", "text", "<generat", "CartPole"),
    ("gymnasium", "to_dask", AttributeError, [1.0] * 2),
    ("gymnasium", "from_dask", RuntimeError, [1.0] * 2),
    ("autoray", "the_tensor_is_written", [5.0] * 3, [0.0] * 3),
    ("autoray", "read_only_memory_is_written", [5.0] * 3, [0.0] * 3),
    ("autoray", "a_parameter_is_written", [9.0, 1.0], [1.0, 1.0]),
    ("autoray", "a_reversed_array", ValueError, [2.0, 1.0, 0.0]),
    ("autoray", "bfloat16", TypeError, "bfloat16"),
    ("autoray", "a_large_integer", [1], xbridge.ValueLossError),
    ("autoray", "a_mask", [1.0, 2.0], xbridge.UnsupportedArrayError),
    ("pot", "read_only_memory_is_written", [5.0] * 3, [0.0] * 3),
    ("pot", "a_parameter_is_written", [9.0, 1.0], [1.0, 1.0]),
    ("pot", "a_reversed_array", ValueError, [2.0, 1.0, 0.0]),
    ("pot", "bfloat16", TypeError, "bfloat16"),
    ("pot", "a_pending_sign", RuntimeError, [-2.0]),
    ("pot", "a_large_integer", [1], xbridge.ValueLossError),
    ("pot", "a_mask", [1.0, 2.0], xbridge.UnsupportedArrayError),
]


def outcome(case: Any, convert: Any) -> object:
    """What a case gives, or the class of what it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return case(convert)
    except Exception as error:  # noqa: BLE001 -- what is raised is compared
        return type(error)


@pytest.mark.parametrize(("project", "case", "before", "after"), CURED)
def test_adopters__replacement_fixes_listed_faults(
    project: str, case: str, before: object, after: object
) -> None:
    """Each fault listed on a page occurs with the installed package and not with its replacement."""
    theirs, ours = both(project)
    assert outcome(CASES[case], theirs) == before
    assert outcome(CASES[case], ours) == after


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
        listed = set(re.findall(r"^\| `(\w+)` \|", page.read_text("utf-8"), re.MULTILINE))
        assert listed - {"a_reversed_array_aborts"} == shown
