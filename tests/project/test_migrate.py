"""Every row of docs/how-to/migrate.md, run: the idiom and its call side by side.

The page is the data. Both cells of a row are executed as they are printed there, on equal sources,
and its memory column is what must be true of both; so the page cannot promise what the library does
not do. Only the sources stand here. Results are compared by routes that pass xbridge by: raw bytes,
NumPy's `shares_memory`, and writes through one side.

Idioms may warn, since torch does; calls may not.
"""

import re
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pins import is_pinned

import xbridge
from xbridge import asarray, to_jax, to_numpy, to_torch

torch = pytest.importorskip("torch")
array_api_compat = pytest.importorskip("array_api_compat")

from traps import BRAIN_BYTES, DOUBLES, TRAPS, jnp, outcome  # noqa: E402 -- it imports torch

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "migrate.md"

KIND = "emu" if hasattr(torch, "emu") else "cuda"
"""The accelerator: `make test-emulated` runs these tests on the emulated one, with its name in the page."""

TEXT = PAGE.read_text("utf-8").replace("cuda", KIND)
TABLES, _, TRAPS_TABLE = TEXT.partition("## The traps")


# -- the page ------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of a table that sets an idiom beside its call."""

    idiom: str
    call: str
    memory: str = ""
    """How both results lie to the source; not all tables say it."""

    def names(self) -> list[str]:
        """What both cells mention, in order."""
        return [name for cell in (self.idiom, self.call) for name in compile(cell, "", "eval").co_names]

    def marks(self) -> list[pytest.MarkDecorator]:
        """The libraries and devices without which the row is skipped."""
        names, needed = {*self.names()}, []
        for library, words in (("jax", {"j", "jax", "jnp"}), ("dask", {"da", "x"})):
            if names & words:
                needed.append(pytest.mark.skipif(not find_spec(library), reason=f"needs {library}"))
        on_gpu = names & {"g", "k", "p", "v"} or f'"{KIND}"' in self.idiom
        if names & {"cupy", "k"}:
            lacks = not xbridge.is_available("cupy")
            needed.append(pytest.mark.skipif(lacks, reason="needs a GPU that CuPy can use"))
        return [*needed, *([pytest.mark.gpu, needs_device] if on_gpu or names & {"cupy"} else [])]


needs_device = pytest.mark.skipif(
    KIND == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"
)
LINES = [
    [cell.strip(" ") for cell in line.strip("|").split("|")]
    for line in re.findall(r"^\| `.*", TABLES, re.MULTILINE)
]
ROWS = {
    cells[0].strip("`"): Row(*(cell.strip("`") for cell in (cells[1:4] if len(cells) == 5 else cells[:2])))
    for cells in LINES
}


# -- the sources ---------------------------------------------------------------------------------


def tensor() -> Any:
    return torch.linspace(-1.0, 1.0, 6).reshape(2, 3)


def floats() -> Any:
    return np.linspace(5.0, 6.0, 6, dtype="float32").reshape(2, 3)


SMALL = [[-128, -1, 0], [1, 2, 127]]
SOURCES: dict[str, Callable[[], Any]] = {
    "a": lambda: np.linspace(-1.0, 1.0, 6).reshape(2, 3),
    "b": lambda: np.linspace(3.0, 4.0, 6).reshape(2, 3),
    "batch": lambda: {"x": np.ones(2), "y": np.arange(3)},
    "c": lambda: np.array(SMALL, "int8"),
    "f": floats,
    "g": lambda: tensor().to(KIND),
    "h": lambda: tensor().bfloat16(),
    "i": lambda: torch.tensor(SMALL, dtype=torch.int8),
    "j": lambda: jnp().array(floats()),
    "k": lambda: import_module("cupy").asarray(floats()),
    "losses": lambda: [tensor().requires_grad_().sum() * i for i in range(3)],
    "p": lambda: tensor().pin_memory(),
    "state": lambda: {"w": tensor().requires_grad_(), "n": torch.tensor([3, 4])},
    "t": tensor,
    "v": lambda: tensor().to(KIND).requires_grad_(),
    "w": lambda: tensor().requires_grad_(),
    "x": lambda: import_module("dask.array").from_array(SOURCES["a"](), chunks=2) + 1,
    "y": lambda: tensor().requires_grad_() * 2,
    "z": lambda: torch.complex(tensor(), -tensor()),
}
"""What the cells of a row may mention, by its name."""

ALIASES = {"da": "dask.array", "jnp": "jax.numpy", "np": "numpy", "xp": "array_api_compat.torch"}
MODULES = {*ALIASES, "array_api_compat", "cupy", "jax", "torch"}


# -- running a cell, and looking at what came out ------------------------------------------------


class Run(NamedTuple):
    """A source, the first of what a row mentions, and what one cell made of it."""

    source: Any
    result: Any


def run(cell: str, row: Row) -> Run:
    """Run a cell on fresh sources."""
    names = row.names()
    sources = {name: SOURCES[name]() for name in names if name in SOURCES}
    modules = {
        name: import_module(ALIASES.get(name, name)) for name in MODULES.intersection({"torch", *names})
    }
    public = {verb: getattr(xbridge, verb) for verb in xbridge.__all__}
    result = eval(cell, {"tree": xbridge.tree, **modules, **public, **sources})
    return Run(next(iter(sources.values()), None), result)


def run_both(row: Row) -> tuple[Run, Run]:
    """What the tutorials do, during which torch may warn; and what xbridge does, which may not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idiom = run(row.idiom, row)
    return idiom, run(row.call, row)


def library(x: Any) -> str:
    """The library of an array; "builtins" for a list."""
    return type(x).__module__.partition(".")[0].replace("jaxlib", "jax")


def on_host(x: Any) -> Any:
    """An array as NumPy's, over the same memory if that is host memory and an array has it."""
    match library(x):
        case "torch":
            return x.detach().cpu().numpy()
        case "dask":
            return x.compute()
        case "cupy":
            return x.get()
    return np.asarray(x)


def raw(x: Any) -> bytes:
    """The bytes of an array's elements in order, or the text of a list."""
    return repr(x).encode() if isinstance(x, list) else bytes(on_host(x).tobytes())


def described(x: Any) -> Any:
    """All of a result: containers, types, dtypes, devices, shapes and bytes."""
    if isinstance(x, dict):
        return {key: described(value) for key, value in x.items()}
    if isinstance(x, torch.Tensor):
        return (type(x), x.dtype, x.device, x.shape, x.requires_grad, x.grad_fn is None, raw(x))
    if not hasattr(x, "shape"):
        return (type(x), repr(x))
    chunks = (x.chunks, type(x._meta)) if library(x) == "dask" else str(getattr(x, "device", "cpu"))
    return (type(x), x.dtype, x.shape, chunks, raw(x))


def write(x: Any) -> None:
    """Put into every element a number that no source has."""
    if isinstance(x, list):
        x[0][0] = 7
    elif isinstance(x, torch.Tensor):
        x.detach().fill_(7)
    else:
        x.fill(7)


def overlap(p: Any, q: Any) -> bool:
    """Whether two arrays lie in the same memory; a list never does, nor an array of Dask."""
    if {library(p), library(q)} & {"builtins", "dask"}:
        return False
    places = [device_pointer(x) for x in (p, q)]
    if any(places):
        return places[0] == places[1]
    return np.shares_memory(on_host(p), on_host(q))


def device_pointer(x: Any) -> int:
    """The address of an array's memory on a GPU; 0 if it has none there."""
    if library(x) == "cupy":
        return int(x.data.ptr)
    return x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) and x.device.type == KIND else 0


# -- row by row ----------------------------------------------------------------------------------


def test_migrate__tables_have_rows() -> None:
    """Each line of the tables is a row of its own, with words of memory that are tested, or with none."""
    assert len(ROWS) == len(LINES) > 60
    assert {row.memory for row in ROWS.values()} == {"", "shared", "shared, read-only", "copied"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=row.marks()) for name, row in ROWS.items()])
def test_migrate__row_is_true(name: str) -> None:
    """The idiom and the call give equal results and leave equal sources, in memory as the page says."""
    row = ROWS[name]
    memory, shared = row.memory, row.memory.startswith("shared")
    idiom, call = run_both(row)
    assert described(call.result) == described(idiom.result)
    if not memory:
        return
    assert raw(call.source) == raw(idiom.source)
    for source, result in (idiom, call):
        assert overlap(source, result) is shared
        if library(source) not in ("jax", "dask"):  # which cannot be written
            before = raw(result)
            write(source)
            assert (raw(result) != before) is shared
    idiom, call = run_both(row)
    for (source, result), is_ours in ((idiom, False), (call, True)):
        before, is_readonly = raw(source), memory == "shared, read-only"
        if library(result) in ("jax", "dask") or (is_readonly and library(source) == "jax" and not is_ours):
            continue
        if is_ours and is_readonly:
            with pytest.raises(ValueError, match="read-only"):
                write(result)
            assert raw(source) == before
            continue
        write(result)
        assert (raw(source) != before) is shared


# -- the traps -----------------------------------------------------------------------------------

LOSS = xbridge.ValueLossError
EIGHT_BYTES = bytes(DOUBLES)
IS_OLD = is_pinned("torch")  # torch 2.15 reads the numbers

OUTCOMES: dict[str, tuple[Callable[..., Any], Any, Callable[..., Any], Any]] = {
    "read-only": (torch.from_numpy, [7.0] * 3, to_torch, [1.0] * 3),
    "reversed": (torch.from_numpy, ValueError, to_torch, [2.0, 1.0, 0.0]),
    "big-endian": (torch.from_numpy, ValueError, to_torch, [0.0, 1.0, 2.0]),
    "masked": (torch.from_numpy, [1.0, 2.0], to_torch, xbridge.UnsupportedArrayError),
    "typed-buffer": (
        *(torch.asarray, (f"torch.float{32 if IS_OLD else 64}", EIGHT_BYTES)),
        *(to_torch, ("torch.float64", EIGHT_BYTES)),
    ),
    "rounded": (torch.tensor, False, to_torch, True),
    "overflow": (
        *(lambda a: torch.from_numpy(a).type(torch.float32), [inf]),
        *(partial(to_torch, dtype="default"), LOSS),
    ),
    "huge-integers": (np.asarray, [-1.0, float(2**63)], asarray, LOSS),
    "default-device": (torch.as_tensor, "meta", to_torch, "cpu"),
    "bfloat16": (torch.Tensor.numpy, TypeError, to_numpy, BRAIN_BYTES),
    "negative-bit": (np.from_dlpack, [2.0], to_numpy, [-2.0]),
    "expanded": (torch.Tensor.numpy, [7.0] * 3, to_numpy, [0.0] * 3),
    "no-grad": (torch.Tensor.numpy, [RuntimeError, True], to_numpy, [False, False]),
    "wrong-gradient": (lambda y: y.detach().numpy(), [7.0] * 3, to_numpy, [1.0] * 3),
    "snapshot": (lambda w: w.detach().cpu().numpy(), [0.5] * 3, partial(to_numpy, copy=True), [1.0] * 3),
    "cut-in-list": (torch.tensor, False, partial(asarray, backend="torch"), True),
    "unfinished": (
        *(lambda p: p.to(KIND, non_blocking=True), None),  # it may have been in time
        *(partial(to_torch, device=KIND), False),
    ),
    "jax-alias": (lambda a: import_module("jax").device_put(a), [7.0] * 6, to_jax, [0.0] * 6),
    "jax-wraps": (lambda a: jnp().array(a), [1], partial(to_jax, dtype="nearest"), LOSS),
    "jax-changed": (torch.from_dlpack, [7.0] * 3, to_torch, [0.0] * 3),
    "jax-shape": (torch.asarray, (6,), to_torch, (2, 3)),
    "jax-bfloat16": (lambda x: jnp().asarray(x), TypeError, to_jax, BRAIN_BYTES),
    "dask-twice": (
        *(lambda x, y: (x.compute(), y.compute()), 2),
        *(partial(xbridge.align, backend="numpy"), 1),
    ),
}
"""An idiom, what it gives, the call, and what it gives: something seen, or the class of an error."""


def test_migrate__every_trap_is_tested() -> None:
    """Each trap on the page has a test in this module."""
    assert list(TRAPS) == list(OUTCOMES) == re.findall(r"^\| `([\w-]+)` \|", TRAPS_TABLE, re.MULTILINE)


MARKS = {
    "jax": [pytest.mark.skipif(not find_spec("jax"), reason="needs JAX")],
    "dask": [pytest.mark.skipif(not find_spec("dask"), reason="needs Dask")],
    "unfinished": [pytest.mark.gpu, needs_device],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name.partition("-")[0], [])) for name in TRAPS]
)
def test_migrate__trap_is_one_of_the_idiom_alone(name: str) -> None:
    """The idiom gives a wrong result or raises, and the call does not."""
    look, (idiom, theirs, call, ours) = TRAPS[name].look, OUTCOMES[name]
    if theirs is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert outcome(look, idiom) == theirs
    assert outcome(look, call) == ours
