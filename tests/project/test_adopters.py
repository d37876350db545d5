"""`examples/adopters`: the converters of other projects, before and after, held to what the pages say.

`make adopters` runs the projects' own tests. Here each fault that a page of docs/adoption lists is shown in
the installed package, and cured by the replacement. What no page lists must be the same before and after.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
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


def a_reversed_array(convert: Any) -> Any:
    return convert(np.arange(3.0)[::-1], "torch").tolist()


def bfloat16(convert: Any) -> Any:
    return convert(torch.ones(2, dtype=torch.bfloat16), "numpy").dtype.name


def a_pending_sign(convert: Any) -> Any:
    return convert(torch.tensor([1 + 2j]).conj().imag, "numpy").tolist()


def a_large_integer(convert: Any) -> Any:
    with jax.enable_x64(False):
        return convert(np.array([2**40 + 1]), "jax").tolist()


def a_mask(convert: Any) -> Any:
    return convert(np.ma.masked_array([1.0, 2.0], mask=[False, True]), "torch").tolist()


def a_graph_to_numpy(convert: Any) -> Any:
    return convert(torch.ones(2, requires_grad=True), "numpy").tolist()


def a_graph_to_jax(convert: Any) -> Any:
    return convert(torch.ones(2, requires_grad=True), "jax").tolist()


def text(convert: Any) -> Any:
    return convert({"name": "CartPole"}, "torch")["name"][:8]


def to_dask(convert: Any) -> Any:
    return convert(np.ones(2), "dask").compute().tolist()


def from_dask(convert: Any) -> Any:
    return convert(da.ones(2), "torch").tolist()


CURED: list[tuple[str, Any, object, object]] = [
    ("gymnasium", the_source_is_overwritten, [7.0] * 4, [0.0] * 4),
    ("gymnasium", the_tensor_is_written, [5.0] * 3, [0.0] * 3),
    ("gymnasium", a_graph_to_numpy, BufferError, [1.0] * 2),
    ("gymnasium", a_graph_to_jax, BufferError, [1.0] * 2),
    ("gymnasium", bfloat16, RuntimeError, "bfloat16"),
    ("gymnasium", text, "<generat", "CartPole"),
    ("gymnasium", to_dask, AttributeError, [1.0] * 2),
    ("gymnasium", from_dask, RuntimeError, [1.0] * 2),
    ("autoray", the_tensor_is_written, [5.0] * 3, [0.0] * 3),
    ("autoray", read_only_memory_is_written, [5.0] * 3, [0.0] * 3),
    ("autoray", a_parameter_is_written, [9.0, 1.0], [1.0, 1.0]),
    ("autoray", a_reversed_array, ValueError, [2.0, 1.0, 0.0]),
    ("autoray", bfloat16, TypeError, "bfloat16"),
    ("autoray", a_large_integer, [1], xbridge.ValueLossError),
    ("autoray", a_mask, [1.0, 2.0], xbridge.UnsupportedArrayError),
    ("pot", read_only_memory_is_written, [5.0] * 3, [0.0] * 3),
    ("pot", a_parameter_is_written, [9.0, 1.0], [1.0, 1.0]),
    ("pot", a_reversed_array, ValueError, [2.0, 1.0, 0.0]),
    ("pot", bfloat16, TypeError, "bfloat16"),
    ("pot", a_pending_sign, RuntimeError, [-2.0]),
    ("pot", a_large_integer, [1], xbridge.ValueLossError),
    ("pot", a_mask, [1.0, 2.0], xbridge.UnsupportedArrayError),
]


def outcome(case: Any, convert: Any) -> object:
    """What a case gives, or the class of what it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return case(convert)
    except Exception as error:  # noqa: BLE001 -- what is raised is compared
        return type(error)


@pytest.mark.parametrize(
    ("project", "case", "before", "after"), CURED, ids=[f"{row[0]}-{row[1].__name__}" for row in CURED]
)
def test_adopters__replacement_fixes_listed_faults(
    project: str, case: Any, before: object, after: object
) -> None:
    """Each fault listed on a page occurs with the installed package and not with its replacement."""
    theirs, ours = both(project)
    assert outcome(case, theirs) == before
    assert outcome(case, ours) == after


REVERSED = """
import sys, numpy as np, array_api_compat.torch as xp
sys.path.insert(0, sys.argv[1])
import gymnasium_array_conversion as made
convert = made.array_conversion if sys.argv[2] == "ours" else made.theirs.array_conversion
print(convert(np.arange(3.0)[::-1], xp).tolist())
"""


@pytest.mark.parametrize("converter", ["theirs", "ours"])
def test_adopters__gymnasium_aborts_on_reversed_arrays(converter: str) -> None:
    """A reversed array aborts the process with gymnasium's converter and works with the replacement."""
    command = [sys.executable, "-c", REVERSED, str(FOLDER), converter]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if converter == "theirs":
        assert done.returncode != 0
        assert "c10::Error" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "[2.0, 1.0, 0.0]\n")


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
@pytest.mark.parametrize("x", SAME, ids=lambda x: f"{x.dtype}-{x.shape}")
def test_adopters__ordinary_arrays_convert_as_before(project: str, target: str, x: Any) -> None:
    """The replacement converts ordinary arrays as the original does."""
    theirs, ours = both(project)
    assert described(ours(x, target)) == described(theirs(x, target))
    there = theirs(x, target)
    assert described(ours(there, "numpy")) == described(theirs(there, "numpy"))


@pytest.mark.parametrize("project", ["gymnasium", "autoray"])
@pytest.mark.parametrize("target", ["torch", "jax"])
def test_adopters__trees_convert_as_before(project: str, target: str) -> None:
    """The replacement converts trees as the original does."""
    theirs, ours = both(project)
    x = np.ones(2, "float32")
    given = {"state": x, "pair": (x, [np.arange(3, dtype="int32")]), "reward": 1.5, "none": None}
    assert described(ours(given, target)) == described(theirs(given, target))
    twice = ours([x, x], target)
    assert project == "gymnasium" or twice[0] is twice[1]


@pytest.mark.parametrize("spec", ["torch-float64", "jax-float32-cpu", "float16", "cpu", "complex64-numpy"])
def test_autoray__spec_strings_mean_the_same(spec: str) -> None:
    """Strings such as "torch-float64" keep their meaning in the replacement."""
    theirs, ours = both("autoray")
    given = {"x": np.ones(2, "float32"), "n": np.arange(2, dtype="int32")}
    assert described(ours(given, spec)) == described(theirs(given, spec))
    like = torch.zeros(1, dtype=torch.float16)
    assert described(ours(given, like)) == described(theirs(given, like))
    assert described(ours(given, dtype=np.float16)) == described(theirs(given, dtype=np.float16))


def test_autoray__falls_back_for_unknown_libraries() -> None:
    """Libraries that xbridge does not support use autoray's own conversion."""
    made = replacement("autoray_conversion")
    calls: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "original_to", lambda x, **options: calls.append(options))
        made.to(np.ones(2), "tensorflow-float32")
    assert calls == [{"backend": "tensorflow", "dtype": "float32", "device": None}]


@pytest.mark.parametrize("given", [1.5, 3, np.float64(0.5), np.ones(2, "float32")], ids=repr)
def test_pot__type_as_converts_numbers_and_arrays(given: Any) -> None:
    """`from_numpy` with `type_as` gives what POT gives."""
    made = replacement("pot_backend")
    for like in (torch.zeros(1, dtype=torch.float64), jax.numpy.zeros(1)):
        nx = made.backend.get_backend(like)
        ours = made.from_numpy(nx, given, type_as=like)
        assert described(ours) == described(nx.from_numpy(given, type_as=like))


def test_pot__transport_cost_and_gradient_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """`emd2` and its gradient are the same with the replacement."""
    made, ot = replacement("pot_backend"), import_module("ot")

    def loss() -> tuple[float, list[float]]:
        rng = np.random.default_rng(0)
        a = torch.tensor(rng.dirichlet(np.ones(5)), requires_grad=True)
        cost = torch.tensor(rng.random((5, 5)), requires_grad=True)
        value = ot.emd2(a, torch.full((5,), 0.2, dtype=torch.float64), cost)
        value.backward()
        assert cost.grad is not None
        return value.item(), cost.grad.flatten().tolist()

    before = loss()
    monkeypatch.setattr(made.backend.TorchBackend, "_to_numpy", made.to_numpy)
    monkeypatch.setattr(made.backend.TorchBackend, "_from_numpy", made.from_numpy)
    assert loss() == before


# -- what `install` replaces, and what a page counts ---------------------------------------------

INSTALLED = """
import sys
sys.path.insert(0, sys.argv[1])
import gymnasium_array_conversion, autoray_conversion, pot_backend
for module in (gymnasium_array_conversion, autoray_conversion, pot_backend):
    module.install()
import autoray, numpy, torch
from gymnasium.wrappers.numpy_to_torch import numpy_to_torch
from ot.backend import get_backend
grad = torch.ones(2, requires_grad=True)
print(numpy_to_torch({"name": "CartPole"})["name"])
print(autoray.do("to_numpy", grad).flags.writeable)
print(autoray.to(numpy.arange(2.0)[::-1], "torch").tolist())
print(autoray.from_numpy([1, 2], like="torch").tolist())
print(get_backend(grad).from_numpy(numpy.arange(2.0)[::-1]).tolist())
"""


def test_install__replaces_converters_imported_later() -> None:
    """`install` takes effect for programs that import the converters afterwards."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INSTALLED, str(FOLDER)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["CartPole", "False", "[1.0, 0.0]", "[1, 2]", "[1.0, 0.0]"], (
        done.stderr
    )


def lines_of(*functions: Any) -> int:
    """The lines of code of functions, without blank lines, comments and docstrings."""
    count = 0
    for function in functions:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        (found,) = tree.body
        assert isinstance(found, ast.FunctionDef)
        found.body = found.body[1:] if ast.get_docstring(found) else found.body
        count += len(ast.unparse(tree).splitlines())
    return count


def test_gymnasium_page__line_counts_are_right() -> None:
    """The page gives the number of lines of both converters."""
    made = replacement("gymnasium_array_conversion")
    kinds = ("_number", "_mapping", "_iterable", "_array_api", "_none")
    parts = [
        made.theirs.array_conversion,
        *(getattr(made.theirs, f"{kind}_array_conversion") for kind in kinds),
    ]
    said = re.search(r"(\d+) lines of code become (\d+)", PAGES["gymnasium"].read_text("utf-8"))
    assert said
    assert [int(said[1]), int(said[2])] == [lines_of(*parts), lines_of(made.array_conversion)]


def test_adopters__every_fault_is_listed() -> None:
    """Each fault that is tested has a row on the page of its project."""
    for project, page in PAGES.items():
        shown = {case.__name__ for name, case, _, _ in CURED if name == project}
        listed = set(re.findall(r"^\| `(\w+)` \|", page.read_text("utf-8"), re.MULTILINE))
        assert listed - {"a_reversed_array_aborts"} == shown
